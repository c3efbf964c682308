//go:build kube

package clustertest

import (
	"os"
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/internal/node"
)

func TestHold(t *testing.T) {
	os.WriteFile("/tmp/ev/hold.dir", []byte(node.Folder()), 0o644)
	for i := 0; i < 3600; i++ {
		if _, err := os.Stat("/tmp/ev/hold.stop"); err == nil {
			break
		}
		if _, err := os.Stat("/tmp/ev/hold.logs"); err == nil {
			os.Remove("/tmp/ev/hold.logs")
			os.WriteFile("/tmp/ev/hold.log", []byte(cluster.Logs()), 0o644)
		}
		time.Sleep(time.Second)
	}
}
