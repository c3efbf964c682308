package strictyaml

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type word string

type inner struct {
	Wait   time.Duration `yaml:"wait"`
	Count  int           `yaml:"count"`
	Credit *float64      `yaml:"credit"`
	On     *bool         `yaml:"on"`
}

type model struct {
	Split word `yaml:"split"`
}

type item struct {
	Name string `yaml:"name"`
	More any    `yaml:"more"`
}

type listing struct {
	Items []item `yaml:"items"`
	Aside any    `yaml:"aside"`
}

type outer struct {
	Listen string           `yaml:"listen"`
	Share  float64          `yaml:"share"`
	Most   int64            `yaml:"most"`
	Ends   []string         `yaml:"ends"`
	Inner  inner            `yaml:"inner"`
	Models map[string]model `yaml:"models"`
}

func defaults() outer {
	return outer{Listen: "here", Share: 0.5, Most: 7, Ends: []string{"a"}, Inner: inner{Wait: time.Second, Count: 3}}
}

func read(text string) (outer, Places, error) {
	v := defaults()
	p, err := Read("f.yaml", []byte(text), &v)
	return v, p, err
}

func TestValuesAreReadOverTheDefaults(t *testing.T) {
	half := 0.5
	no := false
	for text, change := range map[string]func(*outer){
		"":                     func(*outer) {},
		"# nothing\n---\n":     func(*outer) {},
		"inner:\n":             func(*outer) {},
		"listen: there":        func(o *outer) { o.Listen = "there" },
		"listen: 0.0.0.0:9000": func(o *outer) { o.Listen = "0.0.0.0:9000" },
		"listen: 9000":         func(o *outer) { o.Listen = "9000" },
		`listen: ""`:           func(o *outer) { o.Listen = "" },
		"share: 0":             func(o *outer) { o.Share = 0 },
		"share: 1e-3":          func(o *outer) { o.Share = 0.001 },
		"most: -2":             func(o *outer) { o.Most = -2 },
		"ends: []":             func(o *outer) { o.Ends = []string{} },
		"ends: [x, 'y']":       func(o *outer) { o.Ends = []string{"x", "y"} },
		"{ends: [a:1, 10.0.0.2:2379 ,22:22, http://x:80/y, z]}": func(o *outer) {
			o.Ends = []string{"a:1", "10.0.0.2:2379", "22:22", "http://x:80/y", "z"}
		},
		"inner: {wait: 0}":         func(o *outer) { o.Inner.Wait = 0 },
		"inner: {wait: 1m30s}":     func(o *outer) { o.Inner.Wait = 90 * time.Second },
		"inner: {wait: \"2s\"}":    func(o *outer) { o.Inner.Wait = 2 * time.Second },
		"inner: {credit: .5}":      func(o *outer) { o.Inner.Credit = &half },
		"inner: {on: false}":       func(o *outer) { o.Inner.On = &no },
		"models:\n  m: {split: x}": func(o *outer) { o.Models = map[string]model{"m": {"x"}} },
		"models:\n  a/b.c:\n    split: off": func(o *outer) {
			o.Models = map[string]model{"a/b.c": {"off"}}
		},
		"inner: &i {count: 9}\nmodels: {}":             func(o *outer) { o.Inner.Count, o.Models = 9, map[string]model{} },
		"models: {a: &a {split: x}, b: *a}":            func(o *outer) { o.Models = map[string]model{"a": {"x"}, "b": {"x"}} },
		"models:\n  a: &a {split: x}\n  b: {<<: *a}\n": func(o *outer) { o.Models = map[string]model{"a": {"x"}, "b": {"x"}} },
		"models:\n  a: &a {split: x}\n  b: {<<: *a, split: y}\n": func(o *outer) {
			o.Models = map[string]model{"a": {"x"}, "b": {"y"}}
		},
	} {
		t.Run(text, func(t *testing.T) {
			want := defaults()
			change(&want)
			got, _, err := read(text)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// TestFaultsAreToldAsTheFilesHaveThem: testdata/*.yaml, and beside each what is said of it.
func TestFaultsAreToldAsTheFilesHaveThem(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			v := defaults()
			_, fault := Read("f.yaml", data, &v)
			require.Error(t, fault)
			told := strings.TrimSuffix(name, ".yaml") + ".txt"
			if *rewrite {
				require.NoError(t, os.WriteFile(told, []byte(fault.Error()+"\n"), 0o600))
			}
			want, err := os.ReadFile(told)
			require.NoError(t, err)
			require.Equal(t, string(want), fault.Error()+"\n")
		})
	}
}

// TestAnAddressThatIsNoTextIsToldHowToBecomeOne.
func TestAnAddressThatIsNoTextIsToldHowToBecomeOne(t *testing.T) {
	for text, told := range map[string]string{
		"share: 1\nlisten: [::]:9000":     "f.yaml:2: this is no YAML: an address that begins with [ or with a colon: put it in quotes",
		"{listen: [::1]:9000}":            "f.yaml:1: this is no YAML: an address that begins with [ or with a colon: put it in quotes",
		"{ends: [:9000]}":                 "f.yaml:1: this is no YAML: an address that begins with [ or with a colon: put it in quotes",
		"ends: [[fe80::1]:80]":            "f.yaml:1: this is no YAML: an address that begins with [ or with a colon: put it in quotes",
		"listen: *:9000":                  "f.yaml:1: alias *:9000: expected an anchor of that name, or quotes if it is text",
		"{ends: [a: 1]}":                  "f.yaml:1: ends[0]: a mapping: expected text",
		"{ends: ['a':1]}":                 "f.yaml:1: ends[0]: a mapping: expected text",
		"{ends: [a :1]}":                  "f.yaml:1: ends[0]: a mapping: expected text",
		"{models: {a: [[b:1]]}, most: 1}": "f.yaml:1: models.a: a list: expected a mapping of split",
	} {
		_, _, err := read(text)
		require.EqualError(t, err, told, text)
	}
}

// TestItemsOfAListMayBeMappings: what stands in an any is passed over.
func TestItemsOfAListMayBeMappings(t *testing.T) {
	var v listing
	_, err := Read("f.yaml", []byte("items: [{name: a, more: {b: [1, c]}}, {more: ~}]\naside:\n- {x: 1}\n"), &v)
	require.NoError(t, err)
	require.Equal(t, listing{Items: []item{{Name: "a"}, {}}}, v)
	v = listing{}
	places, err := Read("f.yaml", []byte("items:\n- name: a\n- nam: b\n  more: {nam: c}\naside: 3\n"), &v)
	require.EqualError(t, err, "f.yaml:3: items[1].nam: there is no such key: did you mean items[1].name?")
	require.True(t, places.Given("aside"))
	require.EqualError(t, places.Explain(errors.New("items[0].name \"a\": expected b")), "f.yaml:2: items[0].name \"a\": expected b")
}

type colour string

func (c *colour) Read(text string) error {
	if *c = colour(text); text != "red" {
		return errors.New("red")
	}
	return nil
}

type exact struct {
	Text   string            `json:"text,omitempty"`
	Port   uint16            `json:"port"`
	Most   uint64            `yaml:"most"`
	Share  float64           `yaml:"share"`
	On     bool              `yaml:"on"`
	Texts  []string          `yaml:"texts"`
	Names  map[string]string `yaml:"names"`
	Colour colour            `yaml:"colour"`
	Inner  *exact            `yaml:"inner"`
	Parts  []Part            `yaml:"parts"`
}

func TestAnExactFormRefusesWhatReadersTakeForDifferentThings(t *testing.T) {
	read := func(f Form, text string) (exact, Places, error) {
		f.Exact = true
		var v exact
		d := f.Open("f", []byte(text))
		places, _ := d.Read(&v)
		return v, places, d.Err()
	}
	v, places, err := read(Form{}, `{text: a, port: 65535, most: 18446744073709551615, share: 0.5, on: true, texts: ["1", b], names: {a: b, c: }, colour: red, inner: {port: 1, on: }}`)
	require.NoError(t, err)
	require.Equal(t, exact{
		Text: "a", Port: 65535, Most: 1<<64 - 1, Share: 0.5, On: true, Texts: []string{"1", "b"},
		Names: map[string]string{"a": "b", "c": ""}, Colour: "red", Inner: &exact{Port: 1},
	}, v)
	require.True(t, places.Given("inner.port"))
	require.False(t, places.Given("inner.on"), "a key without a value is absent")
	for text, told := range map[string]string{
		"text: 1":                    "text: 1: expected text, in quotes if it looks like something else",
		"texts: [a, ~]":              "texts[1]: no value: expected text, in quotes if it looks like something else",
		"port: 010":                  "port: 010: expected a decimal number from 0 to 65535",
		"port: 65536":                "port: 65536: expected a decimal number from 0 to 65535",
		"port: 0x1":                  "port: 0x1: expected a decimal number from 0 to 65535",
		"port: -1":                   "port: -1: expected a decimal number from 0 to 65535",
		"port: '1'":                  "port: text in quotes: expected a decimal number from 0 to 65535, without quotes",
		"most: 18446744073709551616": "most: \"18446744073709551616\": expected a decimal number from 0 to 18446744073709551615",
		"share: .inf":                "share: \".inf\": expected a number",
		"share: 0x1p-2":              "share: \"0x1p-2\": expected a number",
		"names: {1: a}":              "names.1: expected a key that is text, in quotes if it looks like something else",
		"<<: {port: 1}":              "<<: expected a key that is text, in quotes if it looks like something else",
		"inner: &a {port: 1}":        "inner: an anchor: expected a mapping of text, port, most, share, on, texts, names, colour, inner, parts",
		"{parts: [&a 1], port: *a}":  "port: an alias: expected a decimal number from 0 to 65535",
		"inner: !!map {}":            "inner: a tag: expected a mapping of text, port, most, share, on, texts, names, colour, inner, parts",
		"colour: blue":               "colour: \"blue\": expected red",
		"colour: [red]":              "colour: a list: expected red",
		"colour: 1":                  "colour: 1: expected text, in quotes if it looks like something else",
		"prt: 1":                     "prt: there is no such key: did you mean port?",
		"{port: 1, port: 2}":         "port: this key stands on line 1 already",
	} {
		_, _, err := read(Form{}, text)
		require.EqualError(t, err, "f:1: "+told, text)
	}
	_, _, err = read(Form{MaxBytes: 100}, strings.Repeat("x", 101))
	require.EqualError(t, err, "f:1: 101 bytes: expected at most 100")
	v, _, err = read(Form{PassOver: true}, "prt: &a [*a]\nport: 1")
	require.NoError(t, err)
	require.Equal(t, exact{Port: 1}, v)
}

func TestPartsAreReadByThemselves(t *testing.T) {
	d := Form{Exact: true}.Open("f", []byte("parts:\n- port: 7\n  prt: 1\n- [8]\n- port:\n"))
	var v exact
	_, ok := d.Read(&v)
	require.True(t, ok)
	require.Len(t, v.Parts, 3)
	text, given := v.Parts[0].Scalar("port")
	require.True(t, given)
	require.Equal(t, "7", text)
	for i, p := range v.Parts {
		var item exact
		places, ok := d.ReadPart(p, fmt.Sprintf("part %d: ", i), &item)
		require.Equal(t, i == 2, ok)
		require.Equal(t, i == 0, places.Given("port"))
	}
	d.Fault(v.Parts[2].Line(), "another %d", 1)
	_, given = v.Parts[2].Scalar("port")
	require.False(t, given)
	require.EqualError(t, d.Err(), "f:3: part 0: prt: there is no such key: did you mean port?\n"+
		"f:4: part 1: a list: expected a mapping of text, port, most, share, on, texts, names, colour, inner, parts\nf:5: another 1")
	require.True(t, Form{}.Open("f", nil).Empty())
}

func TestWhatIsNoTextIsNotShown(t *testing.T) {
	_, _, err := read("listen: a\n\x7fELF\x02\x01\x00secret")
	require.EqualError(t, err, "f.yaml:2: this is no text file (byte 14 is 0x02): expected YAML in UTF-8")
	_, _, err = read("listen: \xff\xfe")
	require.EqualError(t, err, "f.yaml:1: this is no text file (byte 8 is 0xff): expected YAML in UTF-8")
	_, _, err = read("\xff\xfel\x00i\x00")
	require.EqualError(t, err, "f.yaml:1: this is no text file (byte 0 is 0xff): expected YAML in UTF-8", "what some editors call Unicode")
	_, _, err = read("listen: [" + strings.Repeat("x", 10_000) + "]")
	require.Error(t, err)
	require.Less(t, len(err.Error()), 300)
}

func TestFaultsAndMemoryAreBounded(t *testing.T) {
	var many strings.Builder
	for i := range 200 {
		fmt.Fprintf(&many, "unknown%d: 1\n", i)
	}
	_, _, err := read(many.String())
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, maxFaults+1)
	require.Equal(t, "f.yaml: and 150 more", lines[maxFaults])

	_, _, err = read(strings.Repeat(" ", maxBytes+1))
	require.EqualError(t, err, "f.yaml:1: 262145 bytes: expected at most 262144")
	_, _, err = read("listen: " + strings.Repeat("[", 1000))
	require.EqualError(t, err, "f.yaml:1: brackets are nested more than 64 levels deep")

	same := "models:\n  first: &a {split: x}\n"
	for i := range maxNodes {
		same += fmt.Sprintf("  m%d: *a\n", i)
	}
	_, _, err = read(same)
	require.EqualError(t, err, "f.yaml:2501: aliases make this file larger than 5000 values")
	_, _, err = read("ends: &a [*a]")
	require.Error(t, err)
}

func TestFaultsAreToldInTheOrderOfTheirLines(t *testing.T) {
	p := Places{name: "f.yaml", lines: map[string]int{"a": 12, "b": 3}}
	all := errors.Join(errors.New("no place"), p.Explain(errors.Join(errors.New("a 1: late"), errors.New("b 2: early"))), errors.New("f.yaml:7: between"))
	require.EqualError(t, p.InOrder(all), "f.yaml:3: b 2: early\nf.yaml:7: between\nf.yaml:12: a 1: late\nno place")
	require.NoError(t, p.InOrder(nil))
}

func TestALaterFaultIsToldWithItsPlace(t *testing.T) {
	_, p, err := read("listen: x\ninner:\n  wait: 0\n  count: 1\n")
	require.NoError(t, err)
	require.True(t, p.Given("inner.wait"))
	require.True(t, p.Given("inner"))
	require.False(t, p.Given("inner.on"))
	require.False(t, p.Given("most"))
	later := errors.New("inner.wait 0s: expected more than 0")
	err = p.Explain(errors.Join(later, errors.Join(errors.New("inner.on: expected it with share"), errors.New("most 7: expected less"))))
	require.EqualError(t, err, "f.yaml:3: inner.wait 0s: expected more than 0\nf.yaml:2: inner.on: expected it with share\nmost 7: expected less")
	require.ErrorIs(t, err, later)
	require.NoError(t, p.Explain(nil))
	p.Overruled("inner.wait")
	require.EqualError(t, p.Explain(later), later.Error(), "a flag has said it")
	require.False(t, p.Given("inner.wait"))
	require.EqualError(t, Places{}.Explain(later), later.Error())
}

var rewrite = flag.Bool("rewrite", false, "write testdata/*.txt anew")

func FuzzRead(f *testing.F) {
	for _, s := range []string{"listen: x", "inner: {wait: 1s}", "a: &a [*a]", "<<: *x", "models: {a: &a {split: x}, b: *a}", "? [a]: b", "- 1", "!!binary x", "x: |\n  y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := defaults()
		_, err := Read("f", []byte(s), &v)
		if err != nil {
			require.NotContains(t, err.Error(), "reflect")
			require.NotContains(t, err.Error(), "strictyaml.")
		}
	})
}

func TestAByteOrderMarkIsPassedOver(t *testing.T) {
	v, _, err := read("\ufefflisten: x\n")
	require.NoError(t, err)
	require.Equal(t, "x", v.Listen)
	_, _, err = read("listen: x\n\ufeffmost: 1\n")
	require.Error(t, err, "only in front")
}

func TestTheParsersWordsAreCutBetweenWords(t *testing.T) {
	require.Equal(t, "as it is", wholeWords("as it is\nnot this"))
	long := wholeWords(strings.Repeat("word ", 50))
	require.Less(t, len(long), 170)
	require.True(t, strings.HasSuffix(long, "word …"), long)
}
