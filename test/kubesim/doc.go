// Package kubesim is an apiserver for tests: lists and watches of a few resources over
// HTTPS (and HTTP/2), by the rules of Kubernetes' API conventions, with the faults that an apiserver
// may have.
//
// Contract. Objects are maps. [Server.Put] and [Server.Delete] write them; each write has
// the next resource version, one count for all resources. A list has pages (limit,
// continue) of one version; a list at resource version 0 ignores the limit, as a watch
// cache does; one at a version that is not there yet is refused. A watch begins after its
// resource version, or with all objects if it has none. With sendInitialEvents it begins
// with all objects and a bookmark that ends them. Bookmarks come each [Config.Bookmarks]
// and at the watch's time limit. If an object ceases to match a watch's selector, the
// watch tells that it was deleted, in its state before. After [Server.Compact] a watch
// from an older version gets 410 as an event, and a list's continue token 410 as its
// answer.
//
// The rules are those of https://kubernetes.io/docs/reference/using-api/api-concepts/.
// `make test-kube-api` holds the same tests to a real apiserver (test/kubetest).
//
// What it does not do: it checks no object, knows no client by a certificate, and keeps
// nothing on disk. [Server.Stop] and [Server.Start] keep the objects, as a real apiserver
// does whose etcd lives on.
package kubesim
