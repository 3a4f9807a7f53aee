package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// StartRedis is [Start] for Redis alone. What it starts is miniredis, in this
// process: it forgets everything at the end, and keys may outlive their expiry by
// a fifth of a second.
func StartRedis(ctx context.Context, o Options) (*Services, error) {
	if o.RedisURL != "" {
		if err := pingRedis(ctx, o.RedisURL); err != nil {
			return nil, err
		}
		return &Services{RedisURL: o.RedisURL}, nil
	}
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("embedded Redis: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var clock sync.WaitGroup
	clock.Go(func() { letTimePass(ctx, m) })
	return &Services{
		RedisURL: "redis://" + m.Addr(),
		endRedis: func() { cancel(); clock.Wait(); m.Close() },
	}, nil
}

// letTimePass makes keys expire: miniredis has no clock of its own.
func letTimePass(ctx context.Context, m *miniredis.Miniredis) {
	ticker := time.NewTicker(200 * time.Millisecond) // miniredis sorts all keys each time
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ticker.C:
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		case <-ctx.Done():
			return
		}
	}
}

// pingRedis checks that a Redis answers, and lets the address in, within 10 seconds.
func pingRedis(ctx context.Context, address string) error {
	options, err := redis.ParseURL(address)
	if err != nil { // it may quote the address, and so the password
		return errors.New("the Redis address is not readable; write redis://user:password@host:6379/0, " +
			"with the special characters of the password percent-encoded (@ as %40, / as %2F)")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The client would write about a refused connection to standard error.
	conn, err := (&net.Dialer{}).DialContext(ctx, options.Network, options.Addr)
	if err == nil {
		_ = conn.Close()
		client := redis.NewClient(options)
		defer func() { _ = client.Close() }()
		err = client.Ping(ctx).Err()
	}
	if err != nil {
		return fmt.Errorf("no answer from Redis at %s: %w; check the address, the password, and that the server is up", options.Addr, err)
	}
	return nil
}
