//go:build kube

package node

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// answerNames answers pods that ask for the names of Services, until the context ends. Every
// other name is unknown.
func (n *Node) answerNames(ctx context.Context) error {
	var lc net.ListenConfig
	socket, err := lc.ListenPacket(ctx, "udp", Address+":53")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			length, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			if answer, err := n.answer(ctx, question[:length]); err == nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
	return nil
}

// answer returns the answer to a question in the form of RFC 1035.
func (n *Node) answer(ctx context.Context, question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	address, known, err := n.addressOf(ctx, q.Name.String())
	out := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionDesired: head.RecursionDesired},
		Questions: []dnsmessage.Question{q},
	}
	switch {
	case err != nil:
		out.RCode = dnsmessage.RCodeServerFailure
	case !known:
		out.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		out.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
			Body:   &dnsmessage.AResource{A: address.As4()},
		}}
	}
	return out.Pack()
}

// addressOf returns the address of a Service, by its full name with a dot at its end. An
// error says that the apiserver did not.
func (n *Node) addressOf(ctx context.Context, name string) (address netip.Addr, known bool, err error) {
	name, ok := strings.CutSuffix(name, ".svc.cluster.local.")
	if !ok {
		return netip.Addr{}, false, nil
	}
	service, namespace, _ := strings.Cut(name, ".")
	s, err := n.client.Resource(services).Namespace(namespace).Get(ctx, service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return netip.Addr{}, false, nil
	case err != nil:
		return netip.Addr{}, false, err
	}
	spec, _ := s.Object["spec"].(map[string]any)
	ip, _ := spec["clusterIP"].(string)
	address, err = netip.ParseAddr(ip) // "None" is none
	return address, err == nil && address.Is4(), nil
}
