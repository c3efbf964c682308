package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

// trafficEvery is the time between two requests of -traffic.
const trafficEvery = time.Second

// stayUp prints where everything is and waits until the context ends, or until
// a process does that nobody has asked to.
func stayUp(ctx context.Context, out *screen, st *stage, traffic bool) error {
	out.raw(addresses(out, st))
	done := make(chan error, 1)
	if traffic {
		go func() { done <- trickle(ctx, out, st) }()
	}
	defer func() {
		if traffic && ctx.Err() != nil {
			<-done
		}
	}()
	dead := map[*stack.Process]bool{}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for _, p := range st.processes() {
				select {
				case <-p.Done():
					if !dead[p] {
						dead[p] = true
						out.printf("%s\n", out.paint(red, fmt.Sprintf("%s (process %d) has ended; the rest goes on", p.Name, p.PID())))
					}
				default:
				}
			}
		}
	}
}

// addresses is what -up prints.
func addresses(out *screen, st *stage) string {
	var b strings.Builder
	say := func(format string, a ...any) { b.WriteString(fold(fmt.Sprintf(format, a...), out.columns)) }
	head := func(s string) { say("\n%s\n", out.paint(bold, s)) }
	head("Running, on loopback only; Ctrl-C ends everything.")
	say("  clients       %s   (Envoy, process %d)\n", st.envoy.URL, st.envoy.PID())
	say("  status page   %s/   (plugin, process %d)\n", st.plugin.Admin, st.plugin.PID())
	say("  metrics       %s/metrics\n", st.plugin.Admin)
	say("  Envoy admin   curl --unix-socket %s http://envoy/\n", st.envoy.Admin)
	etcd := "yours, below " + st.prefix
	if st.etcd != nil {
		etcd = fmt.Sprintf("process %d", st.etcd.PID())
	}
	say("  etcd          %s   (%s)\n", strings.Join(st.keys, ","), etcd)
	for _, p := range st.pods() {
		say("  %-13s %s   (%s, process %d; its register is process %d)\n",
			p.engine.Info.Role, p.id, p.engine.Sim.BaseURL, p.engine.PID(), p.register.PID())
	}
	head("Ask it something. The header x-baton-decision says who was picked and what each would have cost:")
	b.WriteString(curlExample(st.envoy.URL) + "\n")
	head("Ask again: the blocks of the prompt are now on one prefill worker, and the header says so.")
	say("Kill the prefill worker that the header named, as its pod's death would: kill -9 and the numbers of both "+
		"its processes, above. Ask once more within %.0f s: the answer still comes, and the status page shows who was set "+
		"aside. Then its lease runs out, and it is off the page.\n\n", leaseTTL.Seconds()*2/3)
	return b.String()
}

// curlExample is a command that works as it is printed.
func curlExample(url string) string {
	return "curl -isN " + url + "/v1/chat/completions \\\n" +
		"  -H 'content-type: application/json' -H 'x-debug-decision: 1' \\\n" +
		`  -d '{"model":"` + model + `","stream":true,"max_tokens":8,"messages":[{"role":"user","content":` +
		`"Please tell me in a few plain words how the trains run on the hill line in winter, ` +
		`and whether I may bring my bicycle, my two dogs and a very large green umbrella."}]}'`
}

// trickle sends one request after the other until the context ends: new
// conversations, each of a few turns.
func trickle(ctx context.Context, out *screen, st *stage) error {
	tick := time.NewTicker(trafficEvery)
	defer tick.Stop()
	kinds := []struct {
		prompt string
		turns  []string
	}{{travelPrompt, travelTurns}, {kitchenPrompt, kitchenTurns}}
	for n := 0; ; n++ {
		kind := kinds[n%len(kinds)]
		messages := []message{{"system", kind.prompt}}
		for i, text := range kind.turns {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			messages = append(messages, message{"user", text})
			a, err := ask(ctx, st.envoy.URL, fmt.Sprintf("traffic-%d-%d-%08x", n, i+1, rand.Uint32()), messages, answerTokens)
			if err != nil {
				if ctx.Err() == nil {
					out.printf("%s\n", out.paint(red, err.Error()))
				}
				break
			}
			messages = append(messages, message{"assistant", a.text})
		}
	}
}
