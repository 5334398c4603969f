// `cotenant exporter`: the agent's exporter half as a separate process that only serves HTTP.

import { reduceMemory } from '../../agent/os/memory-tuning.ts';
import { createSnapshotClient } from '../../agent/snapshot/ipc/client.ts';
import { reviewingSetting } from '../../exporter/settings.ts';
import { guardsOf, startExporter } from '../../exporter/start.ts';
import { type Command, text, texts, UsageError } from '../lib/command.ts';
import { LOG_OPTIONS, loggerOf } from '../lib/log-options.ts';
import { runUntilSignal } from '../lib/run-until-signal.ts';
import { checkPageFiles, configurationOf, SETTING_OPTIONS } from './agent-settings.ts';

export const exporter: Command = {
  name: 'exporter',
  summary:
    "The agent's exporter half: serves the page of metrics of an agent that listens on no port, from its socket.",
  usage: '[--config FILE] --set page.socket=PATH [--set PATH=VALUE ...]',
  options: { ...SETTING_OPTIONS, ...LOG_OPTIONS },
  notes:
    'Of the settings of `cotenant agent` it goes by host, port, log, page, processMetrics, compatibilityMetrics and kubernetes.nodeName.',
  async run(parsed) {
    reduceMemory();
    const configuration = configurationOf(text(parsed, 'config'), texts(parsed, 'set'));
    const { host, page } = configuration;
    if (page.socket === '')
      throw new UsageError('page.socket is missing: the socket of the node half, as it is set for `cotenant agent`');
    const log = loggerOf(parsed, 'exporter', configuration.log);
    const start = async () => {
      await checkPageFiles(configuration);
      const source = createSnapshotClient({ path: page.socket, reviews: reviewingSetting(page) !== undefined });
      const started = await startExporter(
        configuration,
        source,
        await guardsOf(configuration, source.review, log),
        log,
      );
      return {
        port: started.port,
        async close() {
          await started.close();
          log.flush();
        },
      };
    };
    const scheme = page.certFile === '' ? 'http' : 'https';
    return runUntilSignal(start, ({ port }) =>
      log.info(`metrics on ${scheme}://${host}:${port}/metrics, snapshots from ${page.socket}`),
    );
  },
};
