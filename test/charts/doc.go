// Package charts tries the Helm chart in charts/. Its tests (build tag kube, `make
// test-kube-api`) render it with Helm, let a real apiserver judge each variant, and run the
// picker with the arguments that the chart gives it.
package charts
