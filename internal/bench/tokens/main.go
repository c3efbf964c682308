package main

import (
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

	"github.com/seed-60ae5743/baton/internal/bench/host"
	"github.com/seed-60ae5743/baton/internal/bench/stats"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
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
	python         bool
}

func run(args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet("tokens", flag.ContinueOnError)
	f.IntVar(&o.repeats, "repeats", 5, "repeats of the first sight, of which the least is printed")
	f.IntVar(&o.turns, "turns", 500, "turns of the conversation")
	f.BoolVar(&o.python, "python", true, "measure the Python package, too (make real-tools)")
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
	var hf *python
	if o.python {
		hf, err = startPython(root)
		if err != nil {
			return err
		}
		defer hf.stop()
	}
	fmt.Fprintf(out, "%s, %s\n\n", host.CPU(), runtime.Version())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "family\t220 KB, tokens\tCPU ms\tPython, CPU ms\tagain\tshare\tturn of 100,000 tokens, p50 µs\tp99 µs\tits CPU, p50 µs\tp99 µs\tmemory KB\n")
	for _, file := range files {
		if err := measure(o, w, hf, file, text); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(file)), err)
		}
	}
	return w.Flush()
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

func measure(o options, w io.Writer, hf *python, file string, text []byte) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	k, err := bpe.Load(b, bpe.Limits{})
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
		n, cold, warm, err := hf.cpu(file, first)
		if err != nil {
			return err
		}
		if n != len(ids) {
			return fmt.Errorf("%d tokens, and %d by the Python package", len(ids), n)
		}
		theirs = [2]time.Duration{min(theirs[0], cold), min(theirs[1], warm)}
	}
	turns, cpu, memory, err := conversation(o, k, filepath.Base(filepath.Dir(file)), text)
	if err != nil {
		return err
	}
	slices.Sort(turns)
	slices.Sort(cpu)
	other := "-\t-\t-"
	if hf != nil {
		other = fmt.Sprintf("%.1f\t%.1f\t1/%.1f", stats.Micros(theirs[0])/1000, stats.Micros(theirs[1])/1000, float64(theirs[0])/float64(least))
	}
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%d\n", filepath.Base(filepath.Dir(file)), len(ids), stats.Micros(least)/1000, other,
		stats.Micros(stats.Quantile(turns, 0.5)), stats.Micros(stats.Quantile(turns, 0.99)),
		stats.Micros(stats.Quantile(cpu, 0.5)), stats.Micros(stats.Quantile(cpu, 0.99)), memory/1024)
	return nil
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

// markers returns what stands before and after a message in a family's chats, roughly.
func markers(family string) (before, after string) {
	switch family {
	case "qwen3":
		return "<|im_start|>user\n", "<|im_end|>\n"
	case "llama3_1":
		return "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"
	case "deepseek_v3":
		return "<｜User｜>", "<｜end▁of▁sentence｜>"
	case "gemma3":
		return "<start_of_turn>user\n", "<end_of_turn>\n"
	case "gptoss":
		return "<|start|>user<|message|>", "<|end|>"
	case "llama2":
		return "<s>[INST] ", " [/INST]</s>"
	default:
		return "\n\nuser: ", ""
	}
}

// conversation times turns from the text of the whole to the block hashes, and takes
// their CPU time. Before them the conversation has its length, in messages of 200 to
// 4,000 bytes.
func conversation(o options, k *bpe.Tokenizer, family string, text []byte) (took, cpu []time.Duration, memory int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, after := markers(family)
	e := k.NewEncoder()
	s := bpe.NewSegments(k, 64<<20)
	var chat []byte
	var ids []uint32
	var hashes []kvindex.LocalHash
	at := 0
	say := func(n int) {
		if at+n > len(text) {
			at = 0
		}
		chat = append(append(append(chat, before...), strings.ToValidUTF8(string(text[at:at+n]), "")...), after...)
		at += n
	}
	for i := 0; len(took) < o.turns; i++ {
		long := len(ids) >= conversationTokens
		if long {
			say(turnBytes - len(before) - len(after))
		} else {
			say(200 + i*997%3800)
		}
		began, used := time.Now(), threadTime()
		ids, err = s.Append(e, ids[:0], chat, false)
		if err != nil {
			return nil, nil, 0, err
		}
		hashes = kvindex.AppendLocalHashes(hashes[:0], ids, blockTokens, 1337)
		if long {
			took, cpu = append(took, time.Since(began)), append(cpu, threadTime()-used)
		}
	}
	return took, cpu, s.Bytes(), nil
}

// threadTime returns the CPU time of this thread; 0 where the system does not tell it.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
