package plugin

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
)

func TestCheckSaysWhatTheRunningPluginSays(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/state" {
			t.Errorf("it asks for %s", r.URL.Path)
		}
		w.Header().Set("Server", admin.ServerName)
		_, _ = w.Write([]byte(`{"trouble": ["REPLICA: The replica\nat 10.0.0.3:9002 sends no messages."], "replicas": [
			{"address": "10.0.0.2:9002", "state": "sharing", "since": "2026-11-29T12:00:00Z", "late_seconds": 0.0012},
			{"address": "10.0.0.3:9002", "state": "silent", "since": "2026-11-29T12:00:00Z", "error": "no answer", "differs_since": "2026-11-29T12:01:00Z"}]}`))
	}))
	defer web.Close()
	c := config.Default()
	c.Leg.KeyFile, c.Leg.Advertise, c.Leg.Replicas, c.Leg.ReplicasService = "key", "10.0.0.1:9002", []string{"10.0.0.2:9002"}, "prod/pods"
	said := func(admin string) string {
		var out bytes.Buffer
		c.Admin.Listen = admin
		CheckRunning(t.Context(), &c, &out)
		return out.String()
	}
	at := web.Listener.Addr().String()
	const trouble = "# - REPLICA: The replica at 10.0.0.3:9002 sends no messages.\n"
	require.Equal(t, "# In trouble, as the plugin at "+at+" says:\n"+trouble+"# Other replicas, as the plugin at "+at+` knows them:
# - 10.0.0.2:9002: sharing since 2026-11-29T12:00:00Z, answers in 1.2 ms
# - 10.0.0.3:9002: silent since 2026-11-29T12:00:00Z; it is not told what is booked here: no answer; what is held here of its bookings differs from what it says since 2026-11-29T12:01:00Z
`, said(at))
	require.Equal(t, "# Other replicas are listed by leg.replicas (10.0.0.2:9002), the Service prod/pods, each other's legs. Who is in tells a running plugin, and none answers at 127.0.0.1:1 (admin.listen).\n", said("127.0.0.1:1"))
	no := false
	c.Leg.Share = &no
	require.Equal(t, "# In trouble, as the plugin at "+at+" says:\n"+trouble, said(at))
	require.Empty(t, said("127.0.0.1:1"))
}
