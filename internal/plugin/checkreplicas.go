package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
)

// CheckReplicas prints, if replicas share what they have booked, what the plugin that runs with this
// configuration says of the others: who is in, how late they are, and what differs. The lines are comments in
// the printed configuration.
func CheckReplicas(ctx context.Context, c *config.Config, stdout io.Writer) {
	if !c.Leg.Shares() {
		return
	}
	s, err := runningReplicas(ctx, c.Admin.Listen)
	if err != nil {
		fmt.Fprintf(stdout, "# Other replicas are listed by %s. Who is in tells a running plugin, and none answers at %s (admin.listen).\n", listedBy(c), c.Admin.Listen)
		return
	}
	fmt.Fprintf(stdout, "# Other replicas, as the plugin at %s knows them:\n", c.Admin.Listen)
	for _, r := range s.Replicas {
		line := fmt.Sprintf("# - %s: %s since %s", r.Address, r.State, r.Since.UTC().Format(time.RFC3339))
		if r.Late > 0 {
			line += fmt.Sprintf(", answers in %.1f ms", r.Late*1000)
		}
		if r.Error != "" {
			line += "; it is not told what is booked here: " + r.Error
		}
		if r.Differs != nil {
			line += "; what is held here of its bookings differs from what it says since " + r.Differs.UTC().Format(time.RFC3339)
		}
		fmt.Fprintln(stdout, line)
	}
	if len(s.Replicas) == 0 {
		fmt.Fprintln(stdout, "# - none")
	}
}

// listedBy says where the other replicas are found.
func listedBy(c *config.Config) string {
	by := []string{}
	if len(c.Leg.Replicas) > 0 {
		by = append(by, "leg.replicas ("+strings.Join(c.Leg.Replicas, ", ")+")")
	}
	if len(c.Discovery.Etcd.Endpoints) > 0 {
		by = append(by, "etcd")
	}
	if s := c.Leg.ReplicasService; s != "" {
		by = append(by, "the Service "+s)
	}
	return strings.Join(append(by, "each other's legs"), ", ")
}

type replicasDoc struct {
	Replicas []struct {
		Address, State, Error string
		Since                 time.Time
		Late                  float64    `json:"late_seconds"`
		Differs               *time.Time `json:"differs_since"`
	}
}

func runningReplicas(ctx context.Context, admin string) (s replicasDoc, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/debug/state", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&s)
}
