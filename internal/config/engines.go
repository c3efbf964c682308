package config

import "time"

// EnginesConfig says what the plugin's own questions to engines carry.
type EnginesConfig struct {
	// APIKeyFile holds the API key that the engines ask for (their --api-key). It is read
	// again for each question, so that the key can be changed by writing the file. Default:
	// none is shown.
	APIKeyFile string `yaml:"api_key_file"`
	// ReportInterval is how often each decode engine is asked what it runs, which puts
	// right what is booked on it. Default 2s; 0: none is asked.
	ReportInterval time.Duration `yaml:"report_interval"`
}

// leastReportInterval is what an engine can be asked without minding: its page costs it
// milliseconds.
const leastReportInterval = 100 * time.Millisecond
