//go:build browser

package admin_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	logdomain "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/admin/admintest"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// These tests open the page in a real Chromium: `make page`. Its pictures are left in
// .run/page for people to look at.

// tab is one page in a browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // by it chromedp knows the tab
	url string

	mu       sync.Mutex
	messages []string // guarded by mu: errors of the console, and breaches of the content policy
}

// browser starts Chromium, whose tabs open the page of cfg.
func browser(t *testing.T) func(cfg admin.Config) *tab {
	t.Helper()
	var bin string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			bin = p
			break
		}
	}
	require.NotEmpty(t, bin, "no Chromium on PATH: install Debian's package chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(bin), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	first, closeAll := chromedp.NewContext(alloc)
	require.NoError(t, chromedp.Do(first))
	t.Cleanup(closeAll)
	return func(cfg admin.Config) *tab {
		cfg.Address = "127.0.0.1:0"
		cfg.Ready = func() (bool, string) { return true, "" }
		cfg.ReadyKey = func(worker.Key) (bool, string) { return true, "" }
		s, err := admin.New(cfg)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() { stop(); <-done })
		at, closeTab := chromedp.NewContext(first)
		t.Cleanup(closeTab)
		b := &tab{t: t, ctx: at, url: "http://" + s.Addr().String() + "/"}
		require.NoError(t, chromedp.Listen(at, func(ev any) {
			b.mu.Lock()
			defer b.mu.Unlock()
			switch e := ev.(type) {
			case *runtime.EventExceptionThrown:
				b.messages = append(b.messages, "exception: "+e.ExceptionDetails.Text)
			case *runtime.EventConsoleAPICalled:
				b.messages = append(b.messages, fmt.Sprintf("console: %s", e.Type))
			case *logdomain.EventEntryAdded:
				b.messages = append(b.messages, fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text))
			}
		}))
		call(b, logdomain.Enable, cdp.Empty{})
		return b
	}
}

func call[P, R any](b *tab, c cdp.Command[P, R], params P) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, c, params)
	require.NoError(b.t, err)
}

func (b *tab) do(as ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, as...))
}

// open shows the page on a screen of this size.
func (b *tab) open(width, height int64, scheme, query string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	b.do(chromedp.EmulateViewport(width, height), chromedp.Navigate(b.url+query), chromedp.WaitReady("footer"))
}

// eval runs JavaScript and returns what it yields.
func eval[T any](b *tab, js string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](js))
	require.NoError(b.t, err)
	return v
}

// until waits until the JavaScript yields true.
func (b *tab) until(js string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return eval[bool](b, "!!("+js+")") }, 20*time.Second, 50*time.Millisecond, js)
}

// refreshed waits until the page has fetched itself twice more.
func (b *tab) refreshed() {
	b.t.Helper()
	for range 2 {
		at := eval[string](b, `document.querySelector("time").dateTime`)
		b.until(fmt.Sprintf(`document.querySelector("time").dateTime !== %q`, at))
	}
}

func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.messages)
}

// picture leaves screenshots: the whole page, and what the screen shows at its top, at the
// workers and at the decisions.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := filepath.Join("..", "..", ".run", "page")
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	save := func(name string, shot chromedp.Action[[]byte]) {
		png, err := chromedp.Run(b.ctx, shot)
		require.NoError(b.t, err)
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
	}
	save(name, chromedp.FullScreenshot(100))
	for part, at := range map[string]string{"top": "header", "workers": "#h-workers", "decisions": "#h-decisions"} {
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).scrollIntoView()", at)))
		save(name+"-"+part, chromedp.CaptureScreenshot())
	}
}

// liveConfig is a fleet whose loads change with each look.
func liveConfig(t *testing.T, n int, models ...string) admin.Config {
	looks := 0
	end := time.Now()
	h := admintest.BusyHour(end)
	full, err := admintest.FullJournal(end)
	require.NoError(t, err)
	return admin.Config{
		Journal: full, Hour: func(_ time.Time, steps int) []hour.Span { return h.Spans(end, steps) },
		State: func() admin.State {
			looks++
			s := admintest.FleetState(time.Now(), n, models...)
			s.Ready, s.StartedAt = true, end.Add(-58*time.Minute)
			s.Workers[0].Ranks[0].Requests += looks
			return s
		},
	}
}

// fits holds that the page does not scroll sideways; if it does, it names what is too wide.
func (b *tab) fits() {
	b.t.Helper()
	require.Empty(b.t, eval[[]string](b, `document.scrollingElement.scrollWidth <= innerWidth ? [] :
		["page " + document.scrollingElement.scrollWidth, ...[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth && !e.parentElement.closest(".scroll, pre"))
		.slice(0, 20).map((e) => e.tagName + "." + e.className + "#" + e.id + " " + e.getBoundingClientRect().right)]`))
}

// hostileModels are names that somebody would have on the page as something else than text.
func hostileModels() []string {
	return []string{"llama-3.1-70b", `<script>alert("m")</script>`, "' onmouseover=alert(1) \"", "\u202eevil\u2066model", strings.Repeat("long-name/", 1000), strings.Repeat("界", 3400)}
}

// hostileConfig is a bad night whose every name is one of these, on a fleet of n workers.
func hostileConfig(t *testing.T, n int) admin.Config {
	cfg := liveConfig(t, n, hostileModels()...)
	state := cfg.State
	cfg.State = func() admin.State {
		s := state()
		night := nightState()
		s.Channels, s.Replicas, s.OwnSum, s.Transitions = night.Channels, night.Replicas, night.OwnSum, night.Transitions
		for i, name := range hostileModels() {
			w := &s.Workers[i]
			w.Endpoint, w.Reason, w.Health, w.Namespace = name+":8000", name, admin.Aside, name
			w.Ranks[0].Events.Reason, w.Ranks[0].Events.Via = name, name
			s.View.Source, s.Config = name, name
			s.Keys[i].Reason, s.Keys[i].CanServe = name, i%2 == 0
			s.Transitions = append(s.Transitions, admin.Transition{At: admin.At(s.Now), What: name, From: name, To: name, Why: name})
			s.Replicas = append(s.Replicas, admin.ReplicaRow{Address: name, Name: name, State: "silent", Since: admin.At(s.Now), Error: name})
			s.Channels = append(s.Channels, admin.ChannelRow{Name: name, Reason: name, Refused: map[string]uint64{name: 1}})
		}
		return s
	}
	for _, name := range hostileModels() {
		h := cfg.Journal.Add(func(r *decision.Record) {
			r.Time, r.RequestID, r.Attempt, r.Model, r.Path, r.Namespace = time.Now(), name, 1, name, "/v1/"+name, name
			r.Decode.Rank, r.Decode.Endpoint, r.Decode.Mode = worker.Rank{ID: 1}, name, "kv"
			r.Decode.Offer(&decision.Row{Rank: worker.Rank{ID: 1}, Endpoint: name, Note: name})
		})
		cfg.Journal.End(h, decision.Failed, name, 502, time.Now())
	}
	return cfg
}

// when is the time of the bad night.
func when() time.Time { return time.Date(2025, 3, 9, 3, 12, 45, 0, time.UTC) }

func nightState() admin.State { return admintest.NightState(when()) }

func nightJournal(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := admintest.NightJournal(when())
	require.NoError(t, err)
	return j
}

const openDecision = `document.querySelector("#p-decisions details").open = true`

func TestTheLookOfThePage(t *testing.T) {
	open := browser(t)
	b := open(liveConfig(t, 12, "llama-3.1-70b"))
	for _, scheme := range []string{"light", "dark"} {
		b.open(1400, 900, scheme, "")
		b.fits()
		b.do(chromedp.Evaluate[chromedp.Void](openDecision))
		b.until(`document.querySelectorAll("#p-decisions details[open] tbody tr").length > 20`)
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#hour-table").open = true`))
		b.picture(scheme)
		b.open(390, 844, scheme, "")
		b.do(chromedp.Evaluate[chromedp.Void](openDecision))
		b.until(`document.querySelectorAll("#p-decisions details[open] tbody tr").length > 20`)
		b.fits()
		b.picture(scheme + "-390")
	}
	many := open(liveConfig(t, 2000, "llama-3.1-70b", "qwen3-8b"))
	many.open(1400, 900, "light", "?sort=-legs")
	many.picture("many")
	many.open(390, 844, "dark", "")
	many.picture("many-390")
	night := open(admin.Config{State: nightState, Journal: nightJournal(t), Hour: hour.New(time.Now()).Spans})
	night.open(1400, 900, "dark", "")
	night.picture("night")
	for _, b := range []*tab{b, many, night} {
		b.quiet()
	}
}

// On a telephone the page does not scroll sideways whatever names there are, and the state and
// the first trouble are on the first screen.
func TestThePageFitsATelephone(t *testing.T) {
	b := browser(t)(hostileConfig(t, 2000))
	b.open(390, 844, "dark", "")
	b.picture("hostile-390")
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => { d.open = true; })`))
	b.until(`document.querySelectorAll("#p-decisions .choices table").length > 40`)
	b.fits()
	for _, sel := range []string{".pill", ".troubles li"} {
		require.Less(t, eval[float64](b, fmt.Sprintf(`document.querySelector(%q).getBoundingClientRect().top + scrollY`, sel)), 300.0, sel)
	}
	b.open(1400, 900, "light", "")
	b.fits()
	b.picture("hostile")
	b.refreshed()
	b.quiet()
	// What would be said of an attack that works.
	b.do(chromedp.Evaluate[chromedp.Void](`document.body.setAttribute("style", "color: red")`), chromedp.Evaluate[chromedp.Void](`document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=alert(1)>")`))
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Contains(strings.Join(b.messages, ""), "Content Security Policy")
	}, 10*time.Second, 50*time.Millisecond)
}

func TestWhatTheReaderHasDoneSurvivesARefresh(t *testing.T) {
	b := browser(t)(liveConfig(t, 2000, "llama-3.1-70b", "qwen3-8b"))
	b.open(1400, 900, "light", "")
	require.Zero(t, eval[int](b, `document.querySelectorAll(".pool[open]").length`), "many workers are folded")

	// Fold, by the keyboard: the pause button, the hour's table and the search come first.
	visited := b.tabTo(`document.activeElement.matches(".pool summary")`)
	require.Subset(t, visited, []string{"BUTTON#pause", "SUMMARY#", "INPUT#search"})
	pool := eval[string](b, `document.activeElement.parentElement.id`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(fmt.Sprintf(`document.getElementById(%q).open`, pool))
	b.refreshed()
	require.True(t, eval[bool](b, fmt.Sprintf(`document.getElementById(%q).open`, pool)))
	require.Equal(t, pool, eval[string](b, `document.activeElement.parentElement.id`), "the focus stays")

	// Sort, by the keyboard.
	b.tabTo(`document.activeElement.id.endsWith("-legs")`)
	numbers := fmt.Sprintf(`[...document.getElementById(%q).querySelectorAll("tbody td:nth-child(3)")].map((c) => Number(c.textContent))`, pool)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("th[aria-sort=descending] a")?.textContent === "In flight"`)
	b.refreshed()
	got := eval[[]int](b, numbers)
	require.Len(t, got, 50)
	require.IsNonIncreasing(t, got)
	require.Contains(t, eval[string](b, `location.search`), "sort=-legs")
	require.True(t, eval[bool](b, `document.activeElement.id.endsWith("-legs")`))
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("th[aria-sort=ascending]") !== null`)
	require.IsNonDecreasing(t, eval[[]int](b, numbers))

	// Search while the page refreshes: nothing that is typed is lost.
	host := "10.8.3.231"
	for _, key := range host {
		b.do(chromedp.SendKeys(chromedp.CSS("#search"), string(key)), chromedp.Sleep(typingPause))
	}
	b.until(`document.querySelectorAll(".pool tbody tr").length === 1`)
	b.refreshed()
	require.Equal(t, host, eval[string](b, `search.value`))
	require.Equal(t, "search", eval[string](b, `document.activeElement.id`))
	require.Equal(t, host+":8000", eval[string](b, `document.querySelector(".pool[open] tbody .id").textContent`))
	b.do(chromedp.Reload(), chromedp.WaitReady("footer"))
	require.Equal(t, host, eval[string](b, `search.value`), "a reader can keep the address")
	for text, want := range map[string]string{"ASIDE": "s-aside", "HEALTHY": "s-healthy", "no such worker": ""} {
		b.do(chromedp.Evaluate[chromedp.Void](`search.select()`), chromedp.SendKeys(chromedp.CSS("#search"), text))
		if want == "" {
			b.until(`document.querySelector("#p-pools").textContent.includes("None of 2000 workers has “no such worker”")`)
			continue
		}
		b.until(fmt.Sprintf(`document.querySelector(".pool[open] tbody .state")?.classList.contains(%q) && location.search.includes(%q)`, want, text))
	}

	// Pause.
	b.do(chromedp.Click(chromedp.CSS("#pause")))
	require.Equal(t, "true", eval[string](b, `pause.getAttribute("aria-pressed")`))
	b.quiet()
}

// typingPause is what a reader needs for a key.
const typingPause = 300 * time.Millisecond

// tabTo presses Tab until the JavaScript yields true, and returns what had the focus before.
func (b *tab) tabTo(js string) (visited []string) {
	b.t.Helper()
	for range 200 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if eval[bool](b, js) {
			return visited
		}
		visited = append(visited, eval[string](b, `document.activeElement.tagName + "#" + document.activeElement.id`))
	}
	require.Fail(b.t, "Tab does not lead there", "%s: %s", js, visited)
	return nil
}

// dimTexts lists the texts that are hard to read: their contrast is below 4.5 : 1.
const dimTexts = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
	const rgb = (color) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		return [...canvas.getImageData(0, 0, 1, 1).data];
	};
	const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c[3] === 255) return c;
		}
		return [255, 255, 255];
	};
	const out = [], seen = new Set();
	let n = 0;
	for (const e of document.querySelectorAll("body *")) {
		if (e.closest("svg, [hidden]") || ![...e.childNodes].some((c) => c.nodeType === 3 && c.data.trim())) continue;
		n++;
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
		const name = e.tagName + "." + e.className + " in " + e.parentElement.className;
		if ((a + 0.05) / (b + 0.05) < 4.5 && !seen.has(name)) {
			seen.add(name);
			out.push(name + " " + ((a + 0.05) / (b + 0.05)).toFixed(2));
		}
	}
	return n < 100 ? ["only " + n + " texts"] : out;
})()`

func TestTextsCanBeReadInTheLightAndInTheDark(t *testing.T) {
	open := browser(t)
	for _, cfg := range []admin.Config{hostileConfig(t, 40), {State: nightState, Journal: nightJournal(t), Hour: hour.New(time.Now()).Spans}} {
		b := open(cfg)
		for _, scheme := range []string{"light", "dark"} {
			b.open(1400, 900, scheme, "?sort=-legs")
			require.Empty(t, eval[[]string](b, dimTexts), scheme)
		}
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".facts dd").className = "dim"; new CSSStyleSheet(); const s = new CSSStyleSheet(); s.replaceSync(".dim { color: #333 }"); document.adoptedStyleSheets = [s]`))
		require.Len(t, eval[[]string](b, dimTexts), 1, "the check sees what is dim")
	}
}

func TestThePageWithoutJavaScript(t *testing.T) {
	b := browser(t)(liveConfig(t, 12, "llama-3.1-70b"))
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.open(1400, 900, "light", "?sort=-prefill")
	b.picture("no-script")
	for sel, want := range map[string]int{"figure svg": 6, ".pool[open]": 2, ".pool tbody tr": 12, "#p-decisions details": 50, "#hour-table tbody tr": 12, "#pause:not([hidden])": 0} {
		nodes, err := chromedp.Run(b.ctx, chromedp.Nodes(chromedp.CSSAll(sel), chromedp.AtLeast(0)))
		require.NoError(t, err)
		require.Len(t, nodes, want, sel)
	}
	b.do(chromedp.SendKeys(chromedp.CSS("#search"), "10.8.0.7"+kb.Enter), chromedp.WaitVisible(`//td//span[text()="aside"]`), chromedp.WaitNotPresent(`//td//span[text()="recovering"]`))
	url, err := chromedp.Run(b.ctx, chromedp.Location())
	require.NoError(t, err)
	require.Contains(t, url, "q=10.8.0.7&sort=-prefill")
	b.quiet()
}
