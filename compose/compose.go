// Package compose carries the files that run Apache Kafka and PostgreSQL
// without Docker, so that a built binary has them with it.
package compose

import (
	"embed"
	"encoding/xml"
	"fmt"
	"strings"
)

// Files holds the script "local" and what it reads. Embedding loses the
// executable bit: run the script with bash.
//
//go:embed local kafka/pom.xml kafka/impatient.properties
var Files embed.FS

// KafkaVersion is the version of Apache Kafka that the script "local" runs.
func KafkaVersion() string {
	pom, err := Files.ReadFile("kafka/pom.xml")
	if err != nil {
		panic(fmt.Sprintf("compose: embedded file: %v", err)) // it is embedded above
	}
	var project struct {
		Version string `xml:"properties>kafka.version"`
	}
	if err := xml.Unmarshal(pom, &project); err != nil || project.Version == "" {
		panic(fmt.Sprintf("compose: kafka/pom.xml has no kafka.version: %v", err))
	}
	return project.Version
}

// Impatient are the broker settings of `compose/local up --impatient`, for brokers on
// which faults are injected.
func Impatient() map[string]string {
	text, err := Files.ReadFile("kafka/impatient.properties")
	if err != nil {
		panic(fmt.Sprintf("compose: embedded file: %v", err)) // it is embedded above
	}
	settings := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = value
		}
	}
	return settings
}
