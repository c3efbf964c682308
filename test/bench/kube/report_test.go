package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheReportSaysWhatWasMeasured(t *testing.T) {
	s := func(cpu, worker time.Duration, reads uint64) span { return span{30 * time.Second, cpu, worker, reads} }
	whole := row{name: "a", pods: 100, started: 40 << 20, changed: 60 << 20, used: 70 << 20, most: 80 << 20, sent: 600}
	whole.idle, whole.load = s(time.Second, 2*time.Second, 1500), s(1600*time.Millisecond, 3*time.Second, 1500)
	full := whole
	full.name, full.load.reads, full.failed = "b", 900, 3
	silent := whole
	silent.name, silent.load, silent.used, silent.sent = "c", span{}, 0, 0
	text := report{cpu: "a processor", cores: 2, rate: 20, rows: []row{whole, full, silent}}.String()
	require.Contains(t, text, "| a | 100 | 40 | 60 | 70 | 80 | 2.0 | 3.2 | 1.0 | 0.5 | 0.5 | 4.0 | 6.0 |\n")
	require.Contains(t, text, "| b | 100 | 40 | 60 | 70 | 80 | 2.0 | 3.2 | – | 0.5 | 0.3 | 4.0 | 6.0 |\n")
	require.Contains(t, text, "| c | 100 | 40 | 60 | – | 80 | 2.0 | – | – | 0.5 | – | 4.0 | – |\n")
	require.Contains(t, text, "b, 100 pods: 3 of 600 requests failed.")
}
