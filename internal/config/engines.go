package config

import "time"

// EnginesConfig says how the plugin asks engines.
type EnginesConfig struct {
	// APIKeyFile holds the API key that the engines ask for (their --api-key). It is read
	// again for each question, so that writing the file changes the key. Default: no key
	// is sent.
	APIKeyFile string `yaml:"api_key_file"`
	// ReportInterval is how often each decode engine is asked what it runs; the reports
	// correct what is booked on it. Default 2s; 0: no engine is asked.
	ReportInterval time.Duration `yaml:"report_interval"`
}

// leastReportInterval is the shortest interval that costs an engine little: it takes
// milliseconds to make its metrics page.
const leastReportInterval = 100 * time.Millisecond
