package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
)

// CheckRunning prints what the plugin that runs with this configuration says: what is wrong, and, if
// replicas share what they have booked, who of the others is in, how late they are, and what
// differs. The lines are comments in the printed configuration.
func CheckRunning(ctx context.Context, c *config.Config, stdout io.Writer) {
	s, err := askRunning(ctx, c.Admin.Listen)
	switch {
	case err != nil && c.Leg.Shares():
		fmt.Fprintf(stdout, "# Other replicas are listed by %s. Who is in tells a running plugin, and none answers at %s (admin.listen).\n", listedBy(c), c.Admin.Listen)
		return
	case err != nil:
		return
	case len(s.Trouble) > 0:
		fmt.Fprintf(stdout, "# In trouble, as the plugin at %s says:\n", c.Admin.Listen)
	}
	for _, line := range s.Trouble {
		fmt.Fprintf(stdout, "# - %s\n", strings.Join(strings.Fields(line), " "))
	}
	if c.Leg.Shares() {
		s.printReplicas(c, stdout)
	}
}

func (s *runningDoc) printReplicas(c *config.Config, stdout io.Writer) {
	fmt.Fprintf(stdout, "# Other replicas, as the plugin at %s knows them:\n", c.Admin.Listen)
	for _, r := range s.Replicas {
		line := fmt.Sprintf("# - %s: %s since %s", r.Address, r.State, r.Since.UTC().Format(time.RFC3339))
		if r.Late > 0 {
			line += fmt.Sprintf(", answers in %.1f ms", r.Late*1000)
		}
		if r.Error != "" {
			line += "; it is not told what is booked here: " + r.Error
		}
		if !r.DiffersSince.IsZero() {
			line += "; what is held here of its bookings differs from what it says since " + r.DiffersSince.UTC().Format(time.RFC3339)
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

// runningDoc is what is read of a plugin's state.
type runningDoc struct {
	Trouble  []string
	Replicas []admin.ReplicaRow
}

func askRunning(ctx context.Context, at string) (s runningDoc, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/debug/state", nil)
	if err != nil {
		return s, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy of the environment
	resp, err := client.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.Header.Get("Server") != admin.ServerName {
		return s, errors.New("another server answers")
	}
	return s, json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&s)
}
