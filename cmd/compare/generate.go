package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/endpoint"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/report"
	"github.com/delivered-twice/delivered-twice/internal/stage"
)

func generateCommand() *cobra.Command {
	var (
		o       order.StreamOptions
		rate    int
		brokers []string
		topic   string
	)
	cmd := &cobra.Command{
		Use:   "generate [flags]",
		Short: "Send OrderPaid events to a topic, for pipelines that you run by hand",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Events < 1:
				return cli.Usage(fmt.Errorf("--events is %d, must be at least 1", o.Events))
			case rate < 0:
				return cli.Usage(fmt.Errorf("--rate is %d, must not be negative", rate))
			case !(o.PublisherDuplicates >= 0 && o.PublisherDuplicates <= 1): // NaN is neither
				return cli.Usage(fmt.Errorf("--publisher-duplicates is %v, must be from 0 to 1", o.PublisherDuplicates))
			case len(brokers) == 0:
				return cli.Usage(errors.New("no Kafka brokers: set --brokers or KAFKA_BROKERS"))
			}
			return generate(cmd.Context(), brokers, topic, o, rate)
		},
	}
	f := cmd.Flags()
	cli.Manual{Environment: []cli.Variable{cli.KafkaBrokers}, OK: "all records are in the topic"}.Of(cmd)
	cli.BrokersFlag(f, &brokers, "Kafka's seed brokers, host:port with commas between (default $KAFKA_BROKERS)")
	f.StringVar(&topic, "topic", "orders.paid", "where to send them; created if it is missing")
	f.IntVar(&o.Events, "events", 1_000, "distinct events")
	f.IntVar(&rate, "rate", 0, "events sent a second; 0: as many as the broker takes")
	f.Uint64Var(&o.Seed, "seed", 1, "the same seed gives the same events")
	f.Float64Var(&o.PublisherDuplicates, "publisher-duplicates", 0, "share of events, 0 to 1, that are sent twice")
	return cmd
}

func generate(ctx context.Context, brokers []string, topic string, o order.StreamOptions, rate int) error {
	if _, err := endpoint.Kafka(ctx, brokers); err != nil {
		return err
	}
	if err := cli.EnsureTopic(ctx, brokers, topic); err != nil {
		return err
	}
	sent := 0
	if err := stage.Publish(ctx, brokers, topic, o, stage.Every(rate), func(n int) { sent = n }); err != nil {
		return err
	}
	fmt.Printf("%s sent to topic %s\n", report.Count(sent, "record"), topic)
	return nil
}
