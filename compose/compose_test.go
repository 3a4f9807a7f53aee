package compose_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delivered-twice/delivered-twice/compose"
)

func TestKafkaVersion(t *testing.T) {
	require.Regexp(t, `^\d+\.\d+\.\d+$`, compose.KafkaVersion())
}

// The containers run the version that the script runs.
func TestContainersRunTheSameKafka(t *testing.T) {
	file, err := os.ReadFile("docker-compose.yml")
	require.NoError(t, err)
	require.Contains(t, string(file), "image: apache/kafka:"+compose.KafkaVersion()+"\n")
}
