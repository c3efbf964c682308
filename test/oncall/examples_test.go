package oncall

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const autoscaling = "../../examples/autoscaling/"

// documents reads the documents of a file of the example.
func documents(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(autoscaling + file)
	require.NoError(t, err)
	return bytes.Split(text, []byte("\n---\n"))
}

// TestKEDAAsksForSeriesThatAre, each with a threshold.
func TestKEDAAsksForSeriesThatAre(t *testing.T) {
	docs := documents(t, "keda.yaml")
	require.Len(t, docs, 2)
	for _, doc := range docs {
		var o struct {
			Spec struct {
				Triggers []struct {
					Type, MetricType string
					Metadata         map[string]string
				}
			}
		}
		require.NoError(t, yaml.Unmarshal(doc, &o))
		require.Len(t, o.Spec.Triggers, 1)
		q := o.Spec.Triggers[0]
		require.Equal(t, []string{"prometheus", "Value"}, []string{q.Type, q.MetricType})
		require.NotEmpty(t, metricsOf(q.Metadata["query"]))
		require.Empty(t, unknown(q.Metadata["query"]))
		require.Regexp(t, `^[0-9.]+$`, q.Metadata["threshold"])
		require.Equal(t, "false", q.Metadata["ignoreNullValues"])
	}
}

// TestTheHPAAsksForWhatTheAdapterHas: its series are the adapter's, and those are Baton's.
func TestTheHPAAsksForWhatTheAdapterHas(t *testing.T) {
	var adapter struct {
		Rules struct {
			External []struct {
				SeriesQuery  string            `json:"seriesQuery"`
				Name         map[string]string `json:"name"`
				MetricsQuery string            `json:"metricsQuery"`
			} `json:"external"`
		} `json:"rules"`
	}
	require.NoError(t, yaml.Unmarshal(documents(t, "adapter.yaml")[0], &adapter))
	by := map[string]string{} // by the name of a series, how it is asked for
	for _, r := range adapter.Rules.External {
		require.Empty(t, unknown(r.SeriesQuery))
		series := metricsOf(r.SeriesQuery)
		require.Len(t, series, 1)
		expr := strings.NewReplacer("<<.Series>>", series[0], "<<.LabelMatchers>>", `namespace="a"`).Replace(r.MetricsQuery)
		require.Empty(t, unknown(expr))
		by[r.Name["as"]] = expr
	}
	docs := documents(t, "hpa.yaml")
	require.Len(t, docs, 2)
	for _, doc := range docs {
		var hpa struct { // all of it is judged by an apiserver: charts
			Spec struct {
				Metrics []struct {
					External struct {
						Metric struct {
							Name     string
							Selector struct{ MatchLabels map[string]string }
						}
						Target struct{ Type string }
					}
				}
			}
		}
		require.NoError(t, yaml.Unmarshal(doc, &hpa))
		require.Len(t, hpa.Spec.Metrics, 1)
		m := hpa.Spec.Metrics[0].External
		require.NotEmpty(t, m.Metric.Selector.MatchLabels)
		require.Contains(t, by, m.Metric.Name)
		for label := range m.Metric.Selector.MatchLabels {
			require.Regexp(t, `by \([^)]*\b`+label+`\b`, by[m.Metric.Name], "the adapter keeps the label")
		}
		require.Equal(t, "Value", m.Target.Type, "a mean is not divided by the replicas again")
	}
}
