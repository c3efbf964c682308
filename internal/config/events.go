package config

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
)

// EventsConfig says from where KV events come, besides the addresses that workers name in
// discovery.
type EventsConfig struct {
	// Bind are addresses on which the plugin listens for publishers that dial.
	Bind   []string    `yaml:"bind"`
	Dynamo PlaneConfig `yaml:"dynamo"`
}

// PlaneConfig says where Dynamo's event plane is.
type PlaneConfig struct {
	ZMQ  []string   `yaml:"zmq"` // publishers or brokers, tcp://host:port
	NATS NATSConfig `yaml:"nats"`
}

// NATSConfig says where NATS carries Dynamo's event plane.
type NATSConfig struct {
	URL          string `yaml:"url"`           // nats://host:port or tls://host:port; empty: no NATS
	Username     string `yaml:"username"`      // if NATS asks for one
	PasswordFile string `yaml:"password_file"` // holds the user's password
}

// zmqAddress reads tcp://host:port.
func zmqAddress(s string) (string, error) {
	addr, ok := strings.CutPrefix(s, "tcp://")
	if _, port, err := net.SplitHostPort(addr); !ok || err != nil || port == "" {
		return "", fmt.Errorf("%q: expected tcp://host:port", s)
	}
	return addr, nil
}

func (c *EventsConfig) validate() error {
	_, err := c.Addresses(&kvevents.Config{})
	if len(c.Bind) > 0 && (len(c.Dynamo.ZMQ) > 0 || c.Dynamo.NATS.URL != "") {
		err = errors.Join(err, errors.New("events: expected bind or dynamo, not both: they would report the same workers"))
	}
	n := c.Dynamo.NATS
	if n.URL != "" {
		if e := n.Channel().Validate(); e != nil {
			err = errors.Join(err, fmt.Errorf("events.dynamo.nats: %w", e))
		}
	}
	if (n.Username == "") != (n.PasswordFile == "") {
		err = errors.Join(err, errors.New("events.dynamo.nats: expected both username and password_file, or neither"))
	}
	return err
}

// Addresses writes the ZeroMQ addresses into out.
func (c *EventsConfig) Addresses(out *kvevents.Config) (*kvevents.Config, error) {
	var errs []error
	read := func(key string, from []string, to *[]string) {
		for _, s := range from {
			a, err := zmqAddress(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %w", key, err))
			}
			*to = append(*to, a)
		}
	}
	read("events.bind", c.Bind, &out.Bind)
	read("events.dynamo.zmq", c.Dynamo.ZMQ, &out.PlaneZMQ)
	return out, errors.Join(errs...)
}

// Channel converts to the settings of a NATS client.
func (n *NATSConfig) Channel() nats.Config {
	return nats.Config{URL: n.URL, Username: n.Username, PasswordFile: n.PasswordFile}
}
