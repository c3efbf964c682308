package kube

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// row is what one start of one picker has shown. Memory is in bytes.
type row struct {
	name                         string
	pods                         int
	started, changed, used, most int64
	idle, load                   span // load has no time where no requests were sent
	sent, failed                 int
}

// span is what was used in some time.
type span struct {
	time           time.Duration
	picker, worker time.Duration // of CPU
	reads          uint64        // of pods' metrics
}

// report is the table.
type report struct {
	cpu   string
	cores int
	rate  int
	rows  []row
}

func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d cores. Memory in MiB; CPU in seconds a minute, and in ms a request; readings of a pod's metrics a second.\n\n", r.cpu, r.cores)
	fmt.Fprintf(&b, "| picker | pods | memory: started | each pod has changed | %d requests/s | at most "+
		"| CPU: idle | %[1]d requests/s | one request | readings: idle | %[1]d requests/s | worker's CPU: idle | %[1]d requests/s |\n", r.rate)
	b.WriteString("|" + strings.Repeat(" --- |", 13) + "\n")
	for _, x := range r.rows {
		cells := []string{x.name, fmt.Sprint(x.pods), mib(x.started), mib(x.changed), mib(x.used), mib(x.most)}
		for _, pair := range [][2]string{
			{x.idle.each(x.idle.picker), x.load.each(x.load.picker)}, {x.request(), ""},
			{x.idle.readings(x.pods), x.load.readings(x.pods)}, {x.idle.each(x.idle.worker), x.load.each(x.load.worker)},
		} {
			cells = append(cells, pair[0])
			if pair[1] != "" {
				cells = append(cells, pair[1])
			}
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	for _, x := range r.rows {
		if x.failed > 0 {
			fmt.Fprintf(&b, "\n%s, %d pods: %d of %d requests failed.\n", x.name, x.pods, x.failed, x.sent)
		}
	}
	return b.String()
}

const none = "–"

func mib(bytes int64) string {
	if bytes == 0 {
		return none
	}
	return fmt.Sprintf("%.0f", float64(bytes)/(1<<20))
}

// each is the CPU of one minute, in seconds.
func (s span) each(cpu time.Duration) string {
	if s.time == 0 {
		return none
	}
	return fmt.Sprintf("%.1f", cpu.Seconds()/s.time.Minutes())
}

// readings is how often one pod was read in a second.
func (s span) readings(pods int) string {
	if s.time == 0 {
		return none
	}
	return fmt.Sprintf("%.2g", float64(s.reads)/s.time.Seconds()/float64(pods))
}

// request is the CPU that a request adds to the idle picker, in ms. It is not known if the
// pods were read at another rate meanwhile, by more than a twentieth: that is most of the idle
// picker's CPU.
func (r row) request() string {
	if r.load.time == 0 || r.sent == 0 {
		return none
	}
	idle := r.load.time.Seconds() / r.idle.time.Seconds() // of what was used without requests
	reads := idle * float64(r.idle.reads)
	if math.Abs(float64(r.load.reads)-reads) > reads/20 {
		return none
	}
	return fmt.Sprintf("%.1f", 1000*(r.load.picker.Seconds()-idle*r.idle.picker.Seconds())/float64(r.sent))
}
