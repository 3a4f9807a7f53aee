package peer;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Passes every record on, with its key, value, headers and timestamp, through Kafka Streams. The
 * command line is that of the other programs under benchmarks/peers, and also:
 *
 * <pre>
 *   --guarantee=exactly_once_v2   or at_least_once
 *   --profile=throughput          or latency: no linger, and a short poll
 *   --set=NAME=VALUE              any other setting, as often as needed
 * </pre>
 */
public final class Streams {
  public static void main(String[] args) throws Exception {
    Map<String, String> flags = new HashMap<>();
    Map<String, String> tuning = new TreeMap<>();
    Properties own = new Properties();
    for (String arg : args) {
      String[] flag = arg.split("=", 2);
      if (flag.length != 2 || !flag[0].startsWith("--")) {
        throw new IllegalArgumentException("not --name=value: " + arg);
      }
      if (flag[0].equals("--set")) {
        String[] setting = flag[1].split("=", 2);
        own.put(setting[0], setting[1]);
      } else {
        flags.put(flag[0].substring(2), flag[1]);
      }
    }
    tuning.put("processing.guarantee", flags.getOrDefault("guarantee", "exactly_once_v2"));
    tuning.put("num.stream.threads", flags.getOrDefault("workers", "2"));
    tuning.put("commit.interval.ms", "" + milliseconds(flags.getOrDefault("commit-interval", "100ms")));
    tuning.put("buffered.records.per.partition", "10000");
    tuning.put("max.poll.records", "10000");
    tuning.put("fetch.max.wait.ms", "10");
    tuning.put("max.partition.fetch.bytes", "4194304");
    tuning.put("producer.batch.size", "262144");
    tuning.put("producer.compression.type", flags.getOrDefault("compression", "none"));
    switch (flags.getOrDefault("profile", "throughput")) {
      case "throughput" -> tuning.put("producer.linger.ms", "5");
      case "latency" -> {
        tuning.put("producer.linger.ms", "0");
        tuning.put("poll.ms", "5");
      }
      default -> throw new IllegalArgumentException("--profile is throughput or latency");
    }
    own.forEach((name, value) -> tuning.put((String) name, (String) value));
    tuning.forEach((name, value) -> System.err.println("setting " + name + "=" + value));

    Properties config = new Properties();
    config.putAll(tuning);
    config.put("application.id", flags.get("group"));
    config.put("client.id", flags.get("group") + "-" + flags.getOrDefault("instance", "0"));
    config.put("bootstrap.servers", System.getenv("KAFKA_BROKERS"));
    config.put("auto.offset.reset", "earliest");
    Path state = Files.createTempDirectory("kafka-streams");
    config.put("state.dir", state.toString());

    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(flags.get("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
        .to(flags.get("output"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
    KafkaStreams streams = new KafkaStreams(builder.build(), config);
    AtomicBoolean failed = new AtomicBoolean();
    CountDownLatch ended = new CountDownLatch(1);
    streams.setStateListener((now, before) -> {
      if (now == KafkaStreams.State.RUNNING) {
        System.out.println("ready");
      }
    });
    streams.setUncaughtExceptionHandler(e -> {
      e.printStackTrace();
      failed.set(true);
      ended.countDown();
      return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    });
    // The JVM would answer SIGTERM with exit code 143.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      boolean closed = streams.close(Duration.ofSeconds(20));
      System.out.flush();
      remove(state.toFile());
      Runtime.getRuntime().halt(closed && !failed.get() ? 0 : 1);
    }));
    streams.start();
    ended.await();
    System.exit(1);
  }

  private static void remove(File file) {
    File[] inside = file.listFiles();
    if (inside != null) {
      for (File f : inside) {
        remove(f);
      }
    }
    file.delete();
  }

  /** Reads a duration as Go writes it: 100ms, 1s. */
  private static long milliseconds(String duration) {
    if (duration.endsWith("ms")) {
      return Long.parseLong(duration.substring(0, duration.length() - 2));
    }
    return Duration.parse("PT" + duration).toMillis();
  }
}
