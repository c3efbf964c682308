package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
)

var rewrite = flag.Bool("rewrite", false, "rewrite golden files")

// made is a run with round figures: alone 100, nothing 200 and ours 220 + 10 a
// repeat, so that ours adds 120, 130, 140 to nothing's 100.
func made() (*plan, []sample) {
	p := &plan{Repeats: 3, Servers: []string{nothingServer, batonServer, roundRobinServer}, Cells: []cell{
		{buffered, 2_000, 16}, {fullDuplex, 220_000, 1},
	}}
	var out []sample
	for repeat := range 3 {
		for _, c := range p.Cells {
			add := func(name, mode string, p50, cpu float64) {
				out = append(out, sample{
					Case: name, Mode: mode, BodyBytes: c.BodyBytes, Clients: c.Clients, Repeat: repeat, Requests: 1000,
					P50: p50, P99: 2 * p50, CPU: cpu, EnvoyCPU: p50 / 2, Bytes: 100 * cpu, Mallocs: cpu,
				})
			}
			add(aloneServer, "", 100, 0)
			add(nothingServer, c.Mode, 200, 50)
			add(batonServer, c.Mode, 220+10*float64(repeat), 60)
			if p.wants(roundRobinServer, c) {
				add(roundRobinServer, c.Mode, 210, 55)
			}
		}
	}
	return p, out
}

func TestRatiosAreOfWhatIsAddedWithinARepeat(t *testing.T) {
	p, samples := made()
	got := rows(p, samples)
	require.Len(t, got, 3)
	r := got[0]
	require.Equal(t, cell{buffered, 2_000, 16}, r.cell)
	require.Equal(t, batonServer, r.Server)
	require.Equal(t, spread{3, 100, 100, 100}, r.OverP50)
	require.Equal(t, spread{3, 100, 100, 100}, r.P50.Base)
	require.Equal(t, spread{3, 130, 120, 140}, r.P50.Ours)
	require.Equal(t, spread{3, 1.3, 1.2, 1.4}, r.P50.Ratio)
	require.Equal(t, spread{3, 1.2, 1.2, 1.2}, r.CPU.Ratio)
	require.InDelta(t, 1.2, r.Aim, 0)
	require.False(t, r.met(r.P50))
	require.True(t, r.met(r.CPU))

	require.Equal(t, roundRobinServer, got[1].Server)
	require.Zero(t, got[1].Aim)
	require.Equal(t, cell{fullDuplex, 220_000, 1}, got[2].cell)
	require.True(t, got[2].met(got[2].P50), "1.3 is the aim at 220 KB")
}

func TestARepeatInWhichNothingAddedNothingHasNoRatio(t *testing.T) {
	p, samples := made()
	for i := range samples {
		if s := &samples[i]; s.Case == nothingServer && s.Repeat == 0 {
			s.P50 = 90
		}
	}
	r := rows(p, samples)[0]
	require.Equal(t, 3, r.P50.Base.N)
	require.Equal(t, spread{2, 1.35, 1.3, 1.4}, r.P50.Ratio)
	for i := range samples {
		if s := &samples[i]; s.Case == nothingServer {
			s.P50 = 100
		}
	}
	r = rows(p, samples)[0]
	require.Zero(t, r.P50.Ratio.N)
	require.False(t, r.met(r.P50), "no ratio is no aim met")
}

func TestASampleThatIsMissingIsNoZero(t *testing.T) {
	p, samples := made()
	r := rows(p, samples[:len(samples)/3])[0] // one repeat of three
	require.Equal(t, 1, r.P50.Ours.N)
	require.Equal(t, spread{1, 1.2, 1.2, 1.2}, r.P50.Ratio)
	require.Zero(t, rows(p, nil)[0].OverP50)
}

func TestWithoutThePluginNothingStandsForItself(t *testing.T) {
	p, samples := made()
	p.Servers = []string{nothingServer}
	got := rows(p, samples)
	require.Len(t, got, 2)
	require.Equal(t, spread{3, 1, 1, 1}, got[0].CPU.Ratio)
	require.Zero(t, got[0].Aim)
}

// madeInTurn is made with legs in turn: direct 100 and ours 250 + 10 a repeat,
// so that ours adds 150, 160, 170 to 120, 130, 140 at once.
func madeInTurn() (*plan, []sample) {
	p, samples := made()
	p.Servers = append(p.Servers, syncServer)
	for repeat := range 3 {
		for _, c := range p.Cells {
			s := sample{BodyBytes: c.BodyBytes, Clients: c.Clients, Repeat: repeat, Requests: 1000}
			s.Case, s.P50, s.P99 = directServer, 100, 150
			samples = append(samples, s)
			s.Case, s.Mode, s.P50, s.P99, s.CPU, s.Bytes, s.Mallocs = syncServer, c.Mode, 250+10*float64(repeat), 400, 150, 9000, 90
			samples = append(samples, s)
		}
	}
	return p, samples
}

func TestLegsInTurnAreHeldAgainstLegsAtOnceOverBothWorkersDirectly(t *testing.T) {
	p, samples := madeInTurn()
	for i := range samples {
		if s := &samples[i]; s.Case == directServer {
			s.P50 = 50 // alone's 100 must play no part
		}
	}
	got := rows(p, samples)
	require.Len(t, got, 5)
	r := got[2]
	require.Equal(t, syncServer, r.Server)
	require.Equal(t, []string{directServer, batonServer}, []string{r.Over, r.Base})
	require.Equal(t, spread{3, 50, 50, 50}, r.OverP50)
	require.Equal(t, spread{3, 180, 170, 190}, r.P50.Base)
	require.Equal(t, spread{3, 210, 200, 220}, r.P50.Ours)
	require.Equal(t, spread{3, 2.5, 2.5, 2.5}, r.CPU.Ratio)
	require.InDelta(t, 2.0, r.Aim, 0)
	require.True(t, r.met(r.P50))
	require.False(t, r.met(r.CPU))

	p.Servers = []string{syncServer}
	require.False(t, rows(p, samples[len(samples)-12:])[0].met(rows(p, samples[len(samples)-12:])[0].P50), "without the plugin's legs at once there is no ratio")
}

func TestReport(t *testing.T) {
	p, samples := madeInTurn()
	samples[2].Failed = 4
	r := &report{
		Machine: machine{CPU: "A Processor", Cores: 2, OS: "linux/amd64", Go: "go1", Envoy: "1"}, Rows: rows(p, samples),
		Method: method{Repeats: 3, SliceMS: 400, Placement: "shared"}, Samples: samples,
	}
	for file, got := range map[string]string{"report.txt": r.text(), "report.md": r.markdown(), "report.svg": string(plot(r.Rows))} {
		file = "testdata/" + file
		if *rewrite {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got)
	}
	require.ErrorContains(t, lost(samples), "4 requests failed")

	dir := t.TempDir()
	require.NoError(t, r.write(dir))
	data, err := os.ReadFile(dir + "/path.json")
	require.NoError(t, err)
	var back report
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, *r, back)
}

func TestThePlotIsWellFormedWhateverTheFigures(t *testing.T) {
	for _, ratio := range []spread{{}, {1, 1, 1, 1}, {3, 50, -2, 900}} {
		svg := plot([]row{{cell: cell{"<&", 2_000, 1}, P50: figure{Ratio: ratio}, Aim: 1.2}})
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
		require.NotContains(t, string(svg), "NaN")
	}
}

func TestASpreadHasTheMeanOfTwoMiddleValues(t *testing.T) {
	require.Equal(t, spread{4, 2.5, 1, 4}, spreadOf([]float64{4, 1, 3, 2}))
}

func TestFlagsChooseCells(t *testing.T) {
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	p, err := o.plan()
	require.NoError(t, err)
	require.Len(t, p.Cells, 12)
	require.Equal(t, []string{buffered, fullDuplex}, p.modes())
	require.GreaterOrEqual(t, p.Repeats, 5)
	require.Equal(t, []load{{2_000, 1}, {2_000, 16}, {2_000, 64}, {220_000, 1}, {220_000, 16}, {220_000, 64}}, p.loads())

	o, err = parse([]string{"-only", "^buffered/2KB/(1|64)$", "-quick", "-servers", "baton"}, io.Discard)
	require.NoError(t, err)
	p, err = o.plan()
	require.NoError(t, err)
	require.Equal(t, []cell{{buffered, 2_000, 1}, {buffered, 2_000, 64}}, p.Cells)
	require.Equal(t, []string{buffered}, p.modes())
	require.Equal(t, 5, p.Repeats)

	direct := &variant{name: directServer}
	all := []*variant{{name: aloneServer}, {name: batonServer, mode: buffered, server: &server{}}, {name: batonServer, mode: fullDuplex, server: &server{}}}
	require.Equal(t, all[:2], p.cases(load{2_000, 1}, all))
	require.Equal(t, all[:1], p.cases(load{2_000, 16}, all))
	inTurn := &variant{name: syncServer, mode: buffered, server: &server{}}
	all = []*variant{all[0], direct, inTurn}
	require.Equal(t, all, p.cases(load{2_000, 1}, all))
	require.Equal(t, all[:1], p.cases(load{2_000, 64}, all), "not at 64 clients")

	for _, bad := range [][]string{{"-only", "none"}, {"-only", "("}, {"-servers", "other"}} {
		o, err := parse(bad, io.Discard)
		require.NoError(t, err)
		_, err = o.plan()
		require.Error(t, err, bad)
	}
	for _, bad := range [][]string{{"x"}, {"-duration", "0s"}, {"-repeats", "0"}, {"-nope"}} {
		_, err := parse(bad, io.Discard)
		require.Error(t, err, bad)
	}
}

func TestPlacement(t *testing.T) {
	for name, c := range map[string]struct {
		place string
		on    []int
		want  placement
	}{
		"on two the kernel decides":        {"auto", []int{0, 1}, placement{}},
		"on eight each part has its own":   {"auto", []int{0, 1, 2, 3, 4, 5, 6, 7}, placement{[]int{0}, []int{1, 2, 3}, []int{4, 5, 6, 7}}},
		"two can be split when asked":      {"split", []int{3, 5}, placement{[]int{3}, []int{5}, []int{5}}},
		"eight can be shared when asked":   {"shared", []int{0, 1, 2, 3, 4, 5, 6, 7}, placement{}},
		"four give one to the servers too": {"split", []int{0, 1, 2, 3}, placement{[]int{0}, []int{1}, []int{2, 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := place(c.place, c.on)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := place("split", []int{0})
	require.Error(t, err)
	_, err = place("elsewhere", []int{0, 1})
	require.Error(t, err)
}

func TestAloneIsTheShippedConfigurationWithoutThePlugin(t *testing.T) {
	d, p := netip.MustParseAddrPort("127.0.0.1:7001"), netip.MustParseAddrPort("127.0.0.1:7002")
	for _, duplex := range []bool{false, true} {
		shipped, err := envoy.Standalone(envoy.Params{FullDuplex: duplex, Mirrors: true})
		require.NoError(t, err)
		got, err := alone(shipped, d, p)
		require.NoError(t, err)
		text := string(got)
		for _, gone := range []string{"name: envoy.filters.http.ext_proc", "cluster_header", "ORIGINAL_DST", "original_dst", "access_log:", "lb_policy"} {
			require.NotContains(t, text, gone)
		}
		for _, kept := range []string{
			"address: 127.0.0.1, port_value: 7001", "address: 127.0.0.1, port_value: 7002", "- cluster: prefill_leg", "server_listener_name: main_leg",
			"request_mirror_policies", "envoy.filters.http.router", "x-baton-retry", "circuit_breakers: &limits",
		} {
			require.Contains(t, text, kept)
		}
		var tree map[string]any
		require.NoError(t, yaml.Unmarshal(got, &tree))
		require.Equal(t, strings.Count(string(shipped), "envoy.filters.http.router\n"), strings.Count(text, "envoy.filters.http.router\n"))
	}
	_, err := alone([]byte("static_resources: {clusters: []}"), d, p)
	require.ErrorContains(t, err, "expected 3 ext_proc filters")
}

func TestNodesAreCutWhole(t *testing.T) {
	d := &document{lines: strings.Split(`a:
  log:
  - name: x
    more: 1

  - name: y
  # of what follows
  next:
  - name: x
  - name: z`, "\n")}
	require.Equal(t, 1, d.cut("log:"))
	require.Equal(t, 1, d.cut("- name: x"))
	require.Equal(t, []string{"a:", "  # of what follows", "  next:", "  - name: z"}, d.lines)
	require.Equal(t, 1, d.cut("a"))
	require.Empty(t, d.lines)
}

func TestMetricsAreReadFromThePage(t *testing.T) {
	page := "# HELP a\na_total_other 1\na_total 1.5e+09\nb nan\n"
	n, err := metric(page, "a_total")
	require.NoError(t, err)
	require.EqualValues(t, 1_500_000_000, n)
	_, err = metric(page, "c")
	require.Error(t, err)
	_, err = metric("b x\n", "b")
	require.Error(t, err)
}
