package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/bench/python"
	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tokens:", err)
		os.Exit(1)
	}
}

// Of the figures: how long the text of the first sight is, how long the conversation is,
// how much each of its turns adds, and how many tokens a block has.
const (
	firstSightBytes    = 220_000
	conversationTokens = 100_000
	turnBytes          = 300
	blockTokens        = 16
)

type options struct {
	repeats, turns int
	python, engine bool
}

func run(args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet("tokens", flag.ContinueOnError)
	f.IntVar(&o.repeats, "repeats", 5, "repeats of the first sight, of which the least is printed")
	f.IntVar(&o.turns, "turns", 500, "turns of the conversation")
	f.BoolVar(&o.python, "python", true, "measure the Python package, too (make real-tools)")
	f.BoolVar(&o.engine, "engine", true, "measure /tokenize of a real vLLM, too (make real-tools)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.repeats < 1 || o.turns < 1 {
		return fmt.Errorf("-repeats %d -turns %d: expected each above 0", o.repeats, o.turns)
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	text, err := ourText(root)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, ".tools", "tokenizers", "*", "tokenizer.json"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, errors.New("no tokenizer in .tools/tokenizers: make tokenizers"))
	}
	var hf *python.Judge
	if o.python {
		hf, err = python.Start(root, "vllm", "bpe", os.Stderr, "serve")
		if err != nil {
			return fmt.Errorf("%w; -python=false leaves it out", err)
		}
		defer hf.Stop()
	}
	fmt.Fprintf(out, "%s, %s\n\n", host.CPU(), runtime.Version())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "family\t220 KB, tokens\tCPU ms\tPython, CPU ms\tagain\tshare\tturn of 100,000 tokens, p50 µs\tp99 µs\tits CPU, p50 µs\tp99 µs\n")
	for _, file := range files {
		if err := measure(o, w, hf, file, text); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(file)), err)
		}
	}
	if err := w.Flush(); err != nil || !o.engine {
		return err
	}
	return besideEngine(o, out, root, text)
}

// ourText is prose and code of this repository: some megabytes.
func ourText(root string) ([]byte, error) {
	var text []byte
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "pkg/*/*.go", "internal/*/*.go"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, fmt.Errorf("find texts: %w", err)
		}
		for i, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read a text: %w", err)
			}
			if strings.HasSuffix(name, "_table.go") || strings.HasSuffix(name, ".go") && i%3 != 0 {
				continue
			}
			text = append(text, b...)
		}
	}
	if len(text) < 10*firstSightBytes/2 {
		return nil, fmt.Errorf("%d bytes of text: expected more", len(text))
	}
	return text, nil
}

// prompt is prose and code in equal parts, cut between lines.
func prompt(text []byte) string {
	half := firstSightBytes / 2
	return string(text[:half]) + string(text[len(text)-half:])
}

func measure(o options, w io.Writer, hf *python.Judge, file string, text []byte) error {
	k, err := load(file)
	if err != nil {
		return err
	}
	first := strings.ToValidUTF8(prompt(text), "")
	least, theirs := time.Duration(1<<62), [2]time.Duration{1 << 62, 1 << 62}
	var ids []uint32
	for range o.repeats {
		took, err := firstSight(k, first, &ids)
		if err != nil {
			return err
		}
		least = min(least, took)
		if hf == nil {
			continue
		}
		n, cold, warm, err := cpuOf(hf, file, first)
		if err != nil {
			return err
		}
		if n != len(ids) {
			return fmt.Errorf("%d tokens, and %d by the Python package", len(ids), n)
		}
		theirs = [2]time.Duration{min(theirs[0], cold), min(theirs[1], warm)}
	}
	other := "-\t-\t-"
	if hf != nil {
		other = fmt.Sprintf("%.1f\t%.1f\t1/%.1f", stats.Micros(theirs[0])/1000, stats.Micros(theirs[1])/1000, float64(theirs[0])/float64(least))
	}
	family := filepath.Base(filepath.Dir(file))
	next := "no template\t-\t-\t-"
	m, err := model(filepath.Dir(file))
	if err != nil {
		return err
	}
	if m.Chat() == nil {
		turns, cpu, err := conversation(o, m, text)
		if err != nil {
			return err
		}
		next = quantiles(turns) + "\t" + quantiles(cpu)
	}
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%s\t%s\n", family, len(ids), stats.Micros(least)/1000, other, next)
	return nil
}

// quantiles are the p50 and the p99, in microseconds.
func quantiles(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("%.0f\t%.0f", stats.Micros(stats.Quantile(d, 0.5)), stats.Micros(stats.Quantile(d, 0.99)))
}

func model(folder string) (*local.Model, error) {
	f, err := local.Read(os.DirFS(folder))
	if err != nil {
		return nil, err
	}
	return local.New(f, local.Limits{})
}

// cpuOf returns how many tokens Hugging Face's tokenizers find in a text, and their CPU time to
// encode it for the first time and once more.
func cpuOf(hf *python.Judge, file, text string) (n int, first, again time.Duration, err error) {
	var a struct {
		Answer [][3]float64
		Error  string
	}
	err = hf.Ask(map[string]any{"do": "cpu", "path": file, "texts": []string{text}}, &a)
	if err != nil || len(a.Answer) != 1 {
		return 0, 0, 0, fmt.Errorf("the Python package's answer: %s: %w", a.Error, err)
	}
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	return int(a.Answer[0][0]), seconds(a.Answer[0][1]), seconds(a.Answer[0][2]), nil
}

// firstSight returns the CPU time of an encoder that has met nothing yet.
func firstSight(k *bpe.Tokenizer, text string, ids *[]uint32) (time.Duration, error) {
	e := k.NewEncoder()
	s := bpe.NewSegments(k, 64<<20)
	dst := make([]uint32, 0, len(text))
	runtime.GC()
	began, err := host.CPUTime(os.Getpid())
	if err != nil {
		return 0, err
	}
	*ids, err = s.Append(e, dst, []byte(text), false)
	if err != nil {
		return 0, err
	}
	ended, err := host.CPUTime(os.Getpid())
	return ended - began, err
}

// talk is a conversation of conversationTokens tokens, whose next turns are asked for.
type talk struct {
	text []byte // where messages are taken from
	at   int
	base []byte // the messages, without the brackets
}

// say returns a message of so many bytes.
func (t *talk) say(role string, n int) []byte {
	if t.at+n > len(t.text) {
		t.at = 0
	}
	b, _ := json.Marshal(map[string]string{"role": role, "content": strings.ToValidUTF8(string(t.text[t.at:t.at+n]), "")}) // of strings
	t.at += n
	return b
}

// next returns the body of a next turn: turnBytes new bytes, an answer and a question.
func (t *talk) next() []byte {
	b := append([]byte(`{"model":"qwen3","messages":[`), t.base...)
	around := len(`,{"content":"","role":"assistant"},{"content":"","role":"user"}`)
	b = append(append(b, ','), t.say("assistant", turnBytes/2)...)
	b = append(append(b, ','), t.say("user", turnBytes-turnBytes/2-around)...)
	return append(b, "]}"...)
}

// turn makes the tokens and the block hashes of a body.
type turn struct {
	model  *local.Model
	ids    []uint32
	hashes []kvindex.LocalHash
}

func (t *turn) take(body []byte) error {
	var r openai.Request
	err := openai.Scan(openai.ChatCompletions, body, &r)
	if err != nil {
		return err
	}
	t.ids, _, err = t.model.Append(t.ids[:0], tokens.CallerOf(worker.VLLM), &r, body)
	if err != nil {
		return err
	}
	t.hashes = kvindex.AppendLocalHashes(t.hashes[:0], t.ids, blockTokens, 1337)
	return nil
}

// conversation times next turns of one conversation, from the body's last byte to the block
// hashes, and takes their CPU time. Each turn is another; all go on from the same messages, of
// 200 to 4,000 bytes.
func conversation(o options, m *local.Model, text []byte) (took, cpu []time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t, made := talk{text: text}, turn{model: m}
	if err := t.grow(&made); err != nil {
		return nil, nil, err
	}
	for range o.turns {
		body := t.next()
		began, used := time.Now(), threadTime()
		if err := made.take(body); err != nil {
			return nil, nil, err
		}
		took, cpu = append(took, time.Since(began)), append(cpu, threadTime()-used)
	}
	return took, cpu, nil
}

// grow adds messages until there are enough tokens.
func (t *talk) grow(made *turn) error {
	for i := 0; len(made.ids) < conversationTokens; i++ {
		if i > 0 {
			t.base = append(t.base, ',')
		}
		t.base = append(t.base, t.say([]string{"user", "assistant"}[i%2], 200+i*997%3800)...)
		if i%2 == 1 {
			continue // an answer ends the messages
		}
		if err := made.take(append(append([]byte(`{"model":"qwen3","messages":[`), t.base...), "]}"...)); err != nil {
			return err
		}
	}
	return nil
}

// threadTime returns the CPU time of this thread; 0 where the system does not tell it.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
