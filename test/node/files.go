//go:build kube

package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const pauseImage = "localhost/pause:1"

// users are who asks the apiserver, with the groups of each. A user's token is its key here.
var users = map[string]string{
	"admin":       `admin,admin,"system:masters"`,
	"kubelet":     `system:node:` + name + `,kubelet,"system:nodes"`,
	"controllers": `system:kube-controller-manager,controllers`,
	"scheduler":   `system:kube-scheduler,scheduler`,
	"proxy":       `system:kube-proxy,proxy`,
}

// files writes what the cluster's programs are started with.
func (n *Node) files() error {
	files, err := certificates()
	if err != nil {
		return err
	}
	for user, is := range users {
		files["tokens.csv"] += user + "," + is + "\n"
		files[user+".kubeconfig"] = fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://%s:6443", certificate-authority: %q}}]
users: [{name: user, user: {token: %s}}]
contexts: [{name: node, context: {cluster: node, user: user}}]
current-context: node
`, Address, n.file("ca.crt"), user)
	}
	maps.Copy(files, n.containerFiles())
	maps.Copy(files, n.kubeletFiles())
	for name, text := range files {
		at := n.file(name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// containerFiles are those of what runs containers.
func (n *Node) containerFiles() map[string]string {
	config := fmt.Sprintf(`version = 3
root = %q
state = %q
[grpc]
  address = %q
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = %q
      SystemdCgroup = false
`, n.file("containerd/root"), n.file("containerd/state"), n.socket(), pauseImage,
		filepath.Join(n.tools, "bin"), n.file("cni"), filepath.Join(n.tools, "bin", "runc"))
	network := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "node", "plugins": [{"type": "ptp", "ipMasq": false,
"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, n.file("addresses"))
	return map[string]string{"containerd.toml": config, "cni/node.conflist": network}
}

// kubeletFiles are those of the kubelet and of kube-proxy.
func (n *Node) kubeletFiles() map[string]string {
	kubelet := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
featureGates: {KubeletInUserNamespace: true} # what the kernel keeps from it is no error
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDomain: cluster.local
clusterDNS: [%s]
containerRuntimeEndpoint: "unix://%s"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%}
podLogsDir: %q
volumePluginDir: %q
maxPods: 60
registerNode: true
`, Address, n.socket(), n.file("podlogs"), n.file("volplugins"))
	proxy := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clusterCIDR: 10.88.0.0/16
clientConnection: {kubeconfig: %q}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: 127.0.0.1:10256
`, name, n.file("proxy.kubeconfig"))
	return map[string]string{"kubelet.yaml": kubelet, "proxy.yaml": proxy}
}

// certificates are an authority's, the apiserver's, and the key of accounts' tokens.
func certificates() (map[string]string, error) {
	keys := make([]*ecdsa.PrivateKey, 3)
	texts := make([]string, 3)
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		private, err := x509.MarshalECPrivateKey(key) // in PKCS#8 the apiserver finds no public key
		if err != nil {
			return nil, err
		}
		keys[i], texts[i] = key, block("EC PRIVATE KEY", private)
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	api := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP("10.96.0.1"), net.ParseIP(Address), net.ParseIP("127.0.0.1")},
	}
	caCert, err := x509.CreateCertificate(rand.Reader, ca, ca, keys[0].Public(), keys[0])
	if err != nil {
		return nil, err
	}
	apiCert, err := x509.CreateCertificate(rand.Reader, api, ca, keys[1].Public(), keys[0])
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"ca.crt": block("CERTIFICATE", caCert), "api.crt": block("CERTIFICATE", apiCert), "api.key": texts[1], "accounts.key": texts[2],
	}, nil
}

func block(kind string, content []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}))
}
