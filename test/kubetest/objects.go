//go:build kube

package kubetest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/kubesim"
)

var (
	namespaces = kubesim.Resource{Version: "v1", Plural: "namespaces", Kind: "Namespace"}
	roles      = kubesim.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "roles", Kind: "Role"}
	bindings   = kubesim.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Plural: "rolebindings", Kind: "RoleBinding"}
	crds       = kubesim.Resource{Group: "apiextensions.k8s.io", Version: "v1", Plural: "customresourcedefinitions", Kind: "CustomResourceDefinition"}
)

func (c *control) of(r kubesim.Resource) dynamic.NamespaceableResourceInterface {
	return c.admin.Resource(schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural})
}

// Put makes or changes an object. What only an apiserver gives is left to it: a pod with a
// deletionTimestamp is deleted with a long grace.
func (k *cluster) Put(r kubesim.Resource, object map[string]any) {
	k.t.Helper()
	ctx, cancel := k.step()
	defer cancel()
	require.NoError(k.t, k.put(ctx, r, object), "%s", object)
}

func (k *cluster) put(ctx context.Context, r kubesim.Resource, object map[string]any) error {
	want := wanted(r, object)
	in := k.of(r).Namespace(want.GetNamespace())
	is, err := in.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		is, err = in.Create(ctx, want, metav1.CreateOptions{FieldValidation: "Strict"})
	case err == nil:
		is.SetLabels(want.GetLabels())
		is.SetAnnotations(want.GetAnnotations())
		if r != kubesim.Pods() { // a pod's specification stays as it is
			is.Object["spec"] = want.Object["spec"]
		}
		is, err = in.Update(ctx, is, metav1.UpdateOptions{FieldValidation: "Strict"})
	}
	if err != nil {
		return err
	}
	if status := object["status"]; status != nil {
		is.Object["status"] = status
		if _, err := in.UpdateStatus(ctx, is, metav1.UpdateOptions{FieldValidation: "Strict"}); err != nil {
			return fmt.Errorf("status: %w", err)
		}
	}
	if m, _ := object["metadata"].(map[string]any); m["deletionTimestamp"] != nil && is.GetDeletionTimestamp() == nil {
		long := int64(3600)
		return in.Delete(ctx, want.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &long})
	}
	return nil
}

// wanted is the object as a client may write it.
func wanted(r kubesim.Resource, object map[string]any) *unstructured.Unstructured {
	o := maps.Clone(object)
	m, _ := o["metadata"].(map[string]any)
	m = maps.Clone(m)
	for _, given := range []string{"uid", "deletionTimestamp", "managedFields", "resourceVersion"} {
		delete(m, given)
	}
	o["metadata"] = m
	delete(o, "status")
	spec, _ := o["spec"].(map[string]any)
	spec = maps.Clone(spec)
	switch r {
	case kubesim.Pods():
		if spec == nil {
			spec = map[string]any{"containers": []any{map[string]any{"name": "engine", "image": "engine"}}}
		}
		spec["nodeName"] = "node" // a pod on no node is gone as soon as it is deleted
	case kubesim.Pools():
		if spec == nil {
			spec = map[string]any{}
		}
		spec["endpointPickerRef"] = map[string]any{"name": "baton", "port": map[string]any{"number": int64(9002)}}
	}
	if spec != nil {
		o["spec"] = spec
	}
	u := &unstructured.Unstructured{Object: o}
	u.SetAPIVersion(r.APIVersion())
	u.SetKind(r.Kind)
	return deep(u)
}

// deep copies an object by way of JSON, since tests write numbers of Go's own types.
func deep(u *unstructured.Unstructured) *unstructured.Unstructured {
	text, err := yaml.Marshal(u.Object)
	out := &unstructured.Unstructured{}
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		err = out.UnmarshalJSON(text)
	}
	if err != nil {
		panic(fmt.Sprintf("kubetest: an object that is not JSON: %v", err))
	}
	return out
}

// Delete removes an object at once. Its last state is as it is.
func (k *cluster) Delete(r kubesim.Resource, ns, name string, _ map[string]any) {
	k.t.Helper()
	ctx, cancel := k.step()
	defer cancel()
	none := int64(0)
	err := k.of(r).Namespace(ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &none})
	if !apierrors.IsNotFound(err) {
		require.NoError(k.t, err)
	}
}

// apply writes an object by server-side apply.
func (k *cluster) apply(r kubesim.Resource, ns string, object map[string]any) {
	k.t.Helper()
	ctx, cancel := k.step()
	defer cancel()
	object["apiVersion"], object["kind"] = r.APIVersion(), r.Kind
	u := deep(&unstructured.Unstructured{Object: object})
	text, err := u.MarshalJSON()
	require.NoError(k.t, err)
	in := dynamic.ResourceInterface(k.of(r))
	if ns != "" {
		in = k.of(r).Namespace(ns)
	}
	_, err = in.Patch(ctx, u.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: "kubetest", FieldValidation: "Strict"})
	require.NoError(k.t, err)
}

// right is a verb of a resource.
type right struct{ verb, plural string }

// grant gives the clients what docs/kubernetes.md says that they need, without what is
// refused, and waits until the front apiserver knows it.
func (k *cluster) grant() {
	k.t.Helper()
	k.apply(namespaces, "", map[string]any{"metadata": map[string]any{"name": namespace}})
	var rules []any
	for _, r := range []kubesim.Resource{kubesim.Pools(), kubesim.Pods()} {
		var verbs []any
		for _, verb := range []string{"get", "list", "watch"} {
			if !k.refused[right{verb, r.Plural}] {
				verbs = append(verbs, verb)
			}
		}
		if verbs != nil {
			rules = append(rules, map[string]any{"apiGroups": []any{r.Group}, "resources": []any{r.Plural}, "verbs": verbs})
		}
	}
	k.apply(roles, namespace, map[string]any{"metadata": map[string]any{"name": "baton"}, "rules": rules})
	k.apply(bindings, namespace, map[string]any{
		"metadata": map[string]any{"name": "baton"},
		"roleRef":  map[string]any{"apiGroup": roles.Group, "kind": "Role", "name": "baton"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "baton"}},
	})
	for _, r := range []right{{"list", "pods"}, {"watch", "pods"}, {"list", "inferencepools"}, {"watch", "inferencepools"}} {
		k.await("the rights to be as they are granted", func(ctx context.Context) bool {
			return k.front.may(ctx, r.verb, r.plural) == !k.refused[r]
		})
	}
}

// empty removes all pods, pools and objects of the resources, and waits until the front
// apiserver has none.
func (k *cluster) empty(resources []kubesim.Resource) {
	k.t.Helper()
	for _, r := range []kubesim.Resource{kubesim.Pods(), kubesim.Pools()} {
		if !slices.Contains(resources, r) {
			resources = append(slices.Clone(resources), r)
		}
	}
	ctx, cancel := k.step()
	defer cancel()
	none := int64(0)
	for _, r := range resources {
		err := k.of(r).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		require.NoError(k.t, err)
		k.await(r.Plural+" to be gone", func(ctx context.Context) bool {
			code, answer := k.front.ask(ctx, "GET", collection(r), adminToken, nil)
			return code == 404 || code == 200 && strings.Contains(string(answer), `"items":[]`)
		})
	}
}

func collection(r kubesim.Resource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/namespaces/" + namespace + "/" + r.Plural
	}
	return "/apis/" + r.Group + "/" + r.Version + "/namespaces/" + namespace + "/" + r.Plural
}

// ours marks what this package has defined.
const ours = "kubetest"

// resources defines the custom resources, and none of those that another test has defined so.
func (k *cluster) resources(want []kubesim.Resource) {
	k.t.Helper()
	ctx, cancel := k.step()
	defer cancel()
	names := map[string]kubesim.Resource{}
	for _, r := range want {
		names[r.Plural+"."+r.Group] = r
	}
	there, err := k.of(crds).List(ctx, metav1.ListOptions{LabelSelector: ours})
	require.NoError(k.t, err)
	for _, is := range there.Items {
		if _, ok := names[is.GetName()]; !ok {
			require.NoError(k.t, k.of(crds).Delete(ctx, is.GetName(), metav1.DeleteOptions{}))
		}
	}
	for _, is := range there.Items {
		if _, ok := names[is.GetName()]; !ok {
			k.await(is.GetName()+" to be gone", func(ctx context.Context) bool {
				_, err := k.of(crds).Get(ctx, is.GetName(), metav1.GetOptions{})
				return apierrors.IsNotFound(err) && !k.front.offers(ctx, is)
			})
		}
	}
	for _, r := range want {
		d := k.definition(r)
		d["metadata"].(map[string]any)["labels"] = map[string]any{ours: ""}
		k.apply(crds, "", d)
		k.await(r.Plural+" to be served", func(ctx context.Context) bool {
			front, _ := k.front.ask(ctx, "GET", collection(r), adminToken, nil)
			back, _ := k.back.ask(ctx, "GET", collection(r), adminToken, nil)
			return front == 200 && back == 200
		})
	}
}

// offers reports whether the apiserver's directory has the resource that is defined so.
func (a *apiserver) offers(ctx context.Context, definition unstructured.Unstructured) bool {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		of, _ := v.(map[string]any)
		_, list := a.ask(ctx, "GET", fmt.Sprintf("/apis/%s/%v", group, of["name"]), adminToken, nil)
		if strings.Contains(string(list), `"name":"`+plural+`"`) {
			return true
		}
	}
	return false
}

// definition is the CustomResourceDefinition of a resource: of pools the inference
// extension's own, of others one without a schema.
func (k *cluster) definition(r kubesim.Resource) map[string]any {
	if r == kubesim.Pools() {
		text, err := os.ReadFile(filepath.Join(Tool(k.t, kubeparts.Definitions), r.Group+"_"+r.Plural+".yaml"))
		require.NoError(k.t, err)
		out := map[string]any{}
		require.NoError(k.t, yaml.Unmarshal(text, &out))
		delete(out, "status")
		m, _ := out["metadata"].(map[string]any)
		delete(m, "creationTimestamp")
		return out
	}
	return map[string]any{
		"metadata": map[string]any{"name": r.Plural + "." + r.Group},
		"spec": map[string]any{
			"group": r.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": r.Plural, "singular": strings.ToLower(r.Kind), "kind": r.Kind, "listKind": r.Kind + "List"},
			"versions": []any{map[string]any{
				"name": r.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}
}
