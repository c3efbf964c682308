package plugin

import (
	"log/slog"
	"syscall"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// fewFiles is a limit of open files below which the log is told of it: a thousand streams with
// two legs need as many.
const fewFiles = 4096

// mostLegs returns how many legs the plugin may send at once, so that half of the open files
// that this process may have are left for everything else: Envoy's streams, engines' events,
// the store, probes, and whoever looks at the status page. Go has raised the limit to the hard
// one by now. 0: no limit is known.
func mostLegs(log *slog.Logger) int64 {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	most := int64(min(files.Cur, 1<<40) / 2)
	if files.Cur < fewFiles {
		log.Warn("this process may open only few files: each prefill leg needs one, and once legs use half of them, requests get legs_full; raise the limit (LimitNOFILE of systemd, ulimit -n)",
			logkey.MostFiles, files.Cur, logkey.MostLegs, most)
	}
	return most
}
