package kubernetes

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	o := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	return o
}

func TestAPoolIsReadInItsFormOfNowAndOfBefore(t *testing.T) {
	for name, text := range map[string]string{
		"v1":       `{"metadata":{"namespace":"n","name":"p","uid":"u"},"spec":{"selector":{"matchLabels":{"app":"a"}},"targetPorts":[{"number":8000},{"number":8001},{"number":8000}]}}`,
		"v1alpha2": `{"metadata":{"namespace":"n","name":"p","uid":"u"},"spec":{"selector":{"app":"a"},"targetPortNumber":8000}}`,
	} {
		p, err := poolOf(decoded(t, text))
		require.NoError(t, err, name)
		want := &Pool{Namespace: "n", Name: "p", UID: "u", Selector: map[string]string{"app": "a"}, Ports: []uint16{8000}}
		if name == "v1" {
			want.Ports = []uint16{8000, 8001}
		}
		require.Equal(t, want, p)
	}
}

func TestAPoolThatCannotBeUsedIsToldWhy(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "matchLabels is empty",
		`{"spec":{"selector":{"matchLabels":{"a":1}},"targetPorts":[{"number":1}]}}`:                 "matchLabels is empty",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}}}}`:                                            "expected a port",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":0}]}}`:               "expected a port",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":70000}]}}`:           "expected a port",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":["x"]}}`:                        "expected a port",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":1.5}]}}`:             "expected a port",
		`{"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{},{},{},{},{},{},{},{},{}]}}`: "9 ports",
	} {
		_, err := poolOf(decoded(t, text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestOfAPodThatIsReadWhichItsEndpointDependsOn(t *testing.T) {
	o := decoded(t, `{"kind":"Pod","metadata":{"namespace":"n","name":"p","uid":"u","deletionTimestamp":"x","labels":{"a":"b"},
		"annotations":{"baton.dev/engine":"vllm","llm-d.ai/active-ports":"1","sglang.ai/bootstrap-port":"2","other":"x"}},
		"spec":{"containers":[{"ports":[{"containerPort":8000},{"name":"x"}]},{},7],
			"initContainers":[{"ports":[{"containerPort":1}]},{"restartPolicy":"Always","ports":[{"containerPort":8001}]},7]},
		"status":{"phase":"Failed","podIP":"1.2.3.4","conditions":[{"type":"Ready","status":"True"},{"type":"X","status":"False"},7]}}`)
	want := &Pod{
		Namespace: "n", Name: "p", UID: "u", IP: "1.2.3.4", Declared: []uint16{8000, 8001}, Deleting: true, Ready: true, Finished: true, Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"baton.dev/engine": "vllm", "llm-d.ai/active-ports": "1", "sglang.ai/bootstrap-port": "2"},
	}
	require.Equal(t, want, podOf(o))
	trim(o)
	require.Equal(t, want, podOf(o), "nothing that is read is trimmed away")
	require.Equal(t, &Pod{}, podOf(map[string]any{"metadata": 7, "status": []any{}}))
	for _, c := range []struct {
		spec, ready, containers string
		unheard                 bool
	}{
		{`{}`, "False", "True", true},
		{`{}`, "True", "True", false},
		{`{}`, "False", "False", false},
		{`{}`, "Unknown", "True", false},
		{`{"readinessGates":[{"conditionType":"x"}]}`, "False", "True", false},
	} {
		o := decoded(t, fmt.Sprintf(`{"kind":"Pod","spec":%s,"status":{"conditions":[{"type":"Ready","status":%q},{"type":"ContainersReady","status":%q}]}}`, c.spec, c.ready, c.containers))
		trim(o)
		require.Equal(t, c.unheard, podOf(o).Unheard, "%+v", c)
	}
}

func FuzzReadingObjectsNeverPanics(f *testing.F) {
	f.Add(`{"metadata":{"labels":{"llm-d.ai/role":"decode"},"annotations":{"baton.dev/block-size":"16"}},"status":{"podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]},"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":1}]}}`)
	f.Add(`{"spec":{"selector":{"a":"b"},"targetPortNumber":3}}`)
	f.Fuzz(func(t *testing.T, text string) {
		o := map[string]any{}
		if json.Unmarshal([]byte(text), &o) != nil {
			return
		}
		trim(o)
		pool, err := poolOf(o)
		if err != nil {
			pool = &Pool{Namespace: "n", Name: "p", Selector: map[string]string{"a": "b"}, Ports: []uint16{1}}
		}
		pod := podOf(o)
		j := join(pool, []found{{pod, false}}, &terms{rules: DefaultRules()})
		for _, s := range j.serving {
			require.NoError(t, s.worker.Validate())
		}
	})
}
