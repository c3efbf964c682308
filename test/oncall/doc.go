// Package oncall makes what people who watch Baton need, from the list of metrics in
// internal/telemetry: Prometheus' rules, the runbook that they link to, and Grafana's dashboards.
//
// # Contract
//
// [Files] returns each generated file by its path in the repository; `go -C test run ./oncall/gen` (`make
// alerts-files`) writes them, and a test says that they are as committed. [Rules] renders the rules with all
// their times divided by a factor, so that a test can let an hour pass in a minute.
//
// [Alerts] is the list of alerts. Each has its whole section of the runbook with it, so that neither is
// without the other.
//
// # Invariants
//
//   - Each metric, label and kind of trouble that a rule or a panel names is in internal/telemetry.
//   - Each kind of trouble is in an alert, or in one test's list of those that need none.
//   - An alert that pages has requests that fail or wait as its condition; all others are tickets.
//   - An alert is one for all replicas of a deployment: the labels of a single replica are summed away.
//
// # What it does not do
//
// It sends nobody anything, and knows no Alertmanager. No package of the plugin imports it.
package oncall
