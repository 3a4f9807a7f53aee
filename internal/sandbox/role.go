package sandbox

import "github.com/delivered-twice/delivered-twice/internal/process"

// role is a service that this program can play in a child process.
type role struct {
	name    string                   // the process's name, and its log's
	title   string                   // what messages call it
	prepare func(*process.Cmd) error // optional: adjusts the command before it starts
}

var (
	kfakeRole       = role{name: "kfake", title: "embedded Kafka"}
	kfakeBrokerRole = role{name: "kfake-broker", title: "broker"}
	apacheRole      = role{name: "apache-kafka", title: "Apache Kafka"}
	postgresRole    = role{name: "postgres-cluster", title: "throwaway PostgreSQL", prepare: asUnprivilegedUser}
)

func init() {
	process.RegisterService(kfakeRole.name, kfakeMain)
	process.Register(kfakeBrokerRole.name, kfakeBrokerMain)
	process.RegisterService(apacheRole.name, apacheMain)
	process.RegisterService(postgresRole.name, postgresMain)
}
