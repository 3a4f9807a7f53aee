// Package compose carries the files that run Apache Kafka and PostgreSQL
// without Docker, so that a built binary has them with it.
package compose

import (
	"embed"
	"encoding/xml"
	"fmt"
)

// Files holds the script "local" and what it reads. Embedding loses the
// executable bit: run the script with bash.
//
//go:embed local kafka/pom.xml
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
