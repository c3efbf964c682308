package enginesim

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// TestWire runs the scenarios of testdata/wire: request bodies, and the counts of
// hand-offs.
//
//	workers engine=vllm|trtllm [role=…] [lease=…] [policy=…] [null-on-stop] [dp=…] [max-len=…]
//	        a fresh prefill and a fresh decode worker (role: the second's)
//	restart the prefill worker is another process
//	fault mode=… [form=…] [reason=…] [status=…]   strikes the next request to prefill
//	post to=prefill|decode path=chat|completions [header=name:value] [sse]
//	        sends the input; $HANDOFF is the last hand-off that prefill
//	        answered, $IDS its prompt_token_ids. Prints status and body.
//	change field=…   makes $HANDOFF what prefill answered, with the input as
//	        the field's value; without an input the field goes
//	await expired=N   waits until so many leases have run out
//	ledger  what both workers say of their hand-offs, and the violations
func TestWire(t *testing.T) {
	datadriven.Walk(t, "testdata/wire", func(t *testing.T, path string) {
		w := &wire{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "workers":
				w.workers(t, d)
			case "restart":
				w.stop()
				w.p, w.stop = startNow(t, w.cfg)
			case "fault":
				f := Fault{Count: 1}
				var mode, form string
				d.ScanArgs(t, "mode", &mode)
				d.MaybeScanArgs(t, "form", &form)
				d.MaybeScanArgs(t, "reason", &f.Reason)
				d.MaybeScanArgs(t, "status", &f.Status)
				f.Mode, f.Form = Mode(mode), Form(form)
				require.NoError(t, w.p.SetFault(f))
			case "post":
				return w.post(t, d)
			case "change":
				w.change(t, d)
			case "await":
				var n uint64
				d.ScanArgs(t, "expired", &n)
				Eventually(t, func() bool { return w.p.State(false).Handoff.Expired == n }, "leases run out")
			case "ledger":
				return w.ledger(t)
			default:
				d.Fatalf(t, "unknown verb %s", d.Cmd)
			}
			return ""
		})
	})
}

type wire struct {
	cfg            Config // of prefill
	p, d           *Sim
	stop           func()
	given, handoff string // as prefill answered it, and as decode gets it
	ids            string
}

// startNow is like start, and also returns a function that stops the worker. It may be
// called before the test ends.
func startNow(t *testing.T, cfg Config) (*Sim, func()) {
	t.Helper()
	s, err := New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return s, stop
}

func (w *wire) workers(t *testing.T, d *datadriven.TestData) {
	var engine, policy, lease string
	role := "decode"
	cfg := Config{PrefillPerToken: None, DecodePerToken: None, PageSize: 4, PullTimeout: 2 * time.Second, DPSize: 1}
	d.ScanArgs(t, "engine", &engine)
	d.MaybeScanArgs(t, "policy", &policy)
	d.MaybeScanArgs(t, "role", &role)
	d.MaybeScanArgs(t, "dp", &cfg.DPSize)
	d.MaybeScanArgs(t, "max-len", &cfg.MaxModelLen)
	if d.MaybeScanArgs(t, "lease", &lease) {
		var err error
		cfg.KVLease, err = time.ParseDuration(lease)
		require.NoError(t, err)
	}
	cfg.Engine, cfg.Role, cfg.NullOnStop = worker.Engine(engine), worker.Prefill, d.HasArg("null-on-stop")
	w.cfg = cfg
	w.p, w.stop = startNow(t, cfg)
	w.cfg.Listen, w.cfg.SideChannelListen = w.p.Addr(), w.p.SideAddrs()[0]
	cfg.KVLoadFailure = LoadFailure(policy)
	var err error
	cfg.Role, err = worker.ParseRole(role)
	require.NoError(t, err)
	w.d, _ = startNow(t, cfg)
}

var volatile = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`"created":\d+`), `"created":0`},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ENGINE"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDR"},
	{regexp.MustCompile(`("?remote_port\\?"?:)\d+`), "${1}PORT"},
	{regexp.MustCompile(`(cmpl-[a-z0-9]+(-\d+)?)-[0-9a-f]{8}\b`), "${1}-RANDOM"},
	{regexp.MustCompile(`("z\\?"): \d{19}`), "${1}: N"},
	{regexp.MustCompile(`"ctx_request_id":\d{19}`), `"ctx_request_id":N`},
	{regexp.MustCompile(`"encoded_opaque_state":"[A-Za-z0-9+/=]{40,}"`), `"encoded_opaque_state":"STATE"`},
	{regexp.MustCompile(`(ctx_request_id of the hand-off .* answered \()\d+`), "${1}N"},
}

var (
	nixlField  = regexp.MustCompile(`"kv_transfer_params":(\{.*\})\}$`)
	trtField   = regexp.MustCompile(`"disaggregated_params":(\{.*?\})\}\]`)
	trtIDs     = regexp.MustCompile(`"prompt_token_ids":(\[[\d,]*\])\}$`)
	textBefore = regexp.MustCompile(`d[0-9a-f]{16}`)
)

func (w *wire) post(t *testing.T, d *datadriven.TestData) string {
	var to, path, header string
	d.ScanArgs(t, "to", &to)
	d.ScanArgs(t, "path", &path)
	headers := []string{"X-Request-Id", "r1"}
	if d.MaybeScanArgs(t, "header", &header) {
		name, value, _ := strings.Cut(header, ":")
		headers = append(headers, name, value)
	}
	if path == "chat" {
		path = "chat/completions"
	}
	s := map[string]*Sim{"prefill": w.p, "decode": w.d}[to]
	require.NotNil(t, s, to)
	body := strings.NewReplacer("$HANDOFF", w.handoff, "$IDS", w.ids).Replace(d.Input)
	r := post(t.Context(), s.URL()+"/v1/"+path, body, headers...)
	if to == "prefill" {
		w.given, w.ids = "", ""
		for re, at := range map[*regexp.Regexp]*string{nixlField: &w.given, trtField: &w.given, trtIDs: &w.ids} {
			if m := re.FindStringSubmatch(r.body); m != nil {
				*at = m[1]
			}
		}
		w.handoff = strings.Replace(w.given, `"request_type":"context_only"`, `"request_type":"generation_only"`, 1)
	}
	if r.err != nil {
		return fmt.Sprintf("%d, and the connection broke\n%s", r.status, normal(r.body))
	}
	return fmt.Sprintf("%d\n%s", r.status, normal(r.body))
}

func normal(s string) string {
	for _, v := range volatile {
		s = v.re.ReplaceAllString(s, v.to)
	}
	return strings.TrimSpace(textBefore.ReplaceAllString(s, "ANSWER"))
}

// change makes the hand-off from prefill's answer, with one field changed.
func (w *wire) change(t *testing.T, d *datadriven.TestData) {
	var field string
	d.ScanArgs(t, "field", &field)
	out, found := "", false
	add := func(key, value string) {
		if value != "" {
			out += fmt.Sprintf(`,%q:%s`, key, value)
		}
	}
	require.NoError(t, core.EachField([]byte(w.given), func(key string, v []byte) error {
		value := string(v)
		if key == "request_type" {
			value = `"generation_only"`
		}
		if key == field {
			found, value = true, d.Input
		}
		add(key, value)
		return nil
	}))
	if !found {
		add(field, d.Input)
	}
	w.handoff = "{" + out[1:] + "}"
}

func (w *wire) ledger(t *testing.T) string {
	var out strings.Builder
	Eventually(t, func() bool { return w.p.State(false).Running+w.d.State(false).Running == 0 }, "nobody runs")
	for _, s := range []*Sim{w.p, w.d} {
		st := s.State(false)
		h := st.Handoff
		fmt.Fprintf(&out, "%s:", s.Identity().Role)
		for _, n := range []struct {
			name string
			n    uint64
		}{
			{"kv blocks", uint64(st.KVHeldBlocks)}, //nolint:gosec // a count
			{"held", uint64(h.Held)},               //nolint:gosec // a count
			{"given", h.Given},
			{"taken", h.Taken},
			{"released", h.Released},
			{"expired", h.Expired},
			{"pulled", h.Pulled},
			{"failed", h.PullsFailed},
			{"recomputed", h.Recomputed},
			{"local", h.Local},
		} {
			if n.n > 0 {
				fmt.Fprintf(&out, " %s %d", n.name, n.n)
			}
		}
		var kinds []string
		for _, v := range st.Violations {
			kinds = append(kinds, v.Kind)
		}
		if slices.Sort(kinds); len(kinds) > 0 {
			fmt.Fprintf(&out, ", violations: %s", strings.Join(kinds, " "))
		}
		out.WriteString("\n")
	}
	return out.String()
}
