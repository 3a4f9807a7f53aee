package lane

// kafkaEOSPipelined claims what kafka eos does: several transactions in flight change
// nothing that can be seen.
var kafkaEOSPipelined = Lane{
	Name:          "kafka eos, pipelined",
	Short:         "keospipe",
	Says:          "the same with several transactions in flight, each under an id of its own: the same claims at a fraction of the time a transaction",
	Program:       kafkaEOS.Program,
	Args:          []string{"--guarantee=exactly-once", "--transactions-in-flight=4"},
	Scopes:        kafkaEOS.Scopes,
	Steps:         kafkaEOS.Steps,
	Exposed:       kafkaEOS.Exposed,
	Pauses:        kafkaEOS.Pauses,
	Passings:      kafkaEOS.Passings,
	Progress:      kafkaEOS.Progress,
	Transactional: true,
	Claims:        kafkaEOS.Claims,
}
