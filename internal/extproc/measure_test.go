package extproc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// TestAnAnswerThatIsPrefillsHasAFirstTokenToo: decode does not answer such a request, so no head of its
// answer says when the first byte went out.
func TestAnAnswerThatIsPrefillsHasAFirstTokenToo(t *testing.T) {
	for body, firstTokens := range map[string]string{
		eightTokens: "", // only streamed answers have a first token of their own
		strings.Replace(eightTokens, "{", `{"stream":true,`, 1): "gen_ai_server_time_to_first_token_seconds_count{gen_ai_operation_name=\"text_completion\",gen_ai_request_model=\"m\"} 1\n",
	} {
		tele, err := telemetry.New(telemetry.Config{})
		require.NoError(t, err)
		defer func() { require.NoError(t, tele.Shutdown(context.Background())) }()
		r := withLegs(t, newLegs(saying(allThereIs)), prefillFirst(t, nil), func(c *Config) { c.Telemetry = tele.Instruments })
		p := r.open(filterMain)
		p.asks(body)
		require.EqualValues(t, http.StatusOK, p.settled().GetImmediateResponse().GetStatus().GetCode())
		p.cancel()
		r.forgetLegs()
		r.requireIdle()
		w := httptest.NewRecorder()
		tele.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		page := w.Body.String()
		require.Contains(t, page, "baton_time_to_first_byte_seconds_count{gen_ai_operation_name=\"text_completion\",gen_ai_request_model=\"m\"} 1\n", body)
		if firstTokens == "" {
			require.NotContains(t, page, "gen_ai_server_time_to_first_token_seconds_count", body)
		} else {
			require.Contains(t, page, firstTokens, body)
		}
	}
}
