// Counter files of earlier agents: removed at startup, with one line in the log.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { removeOldCounterFiles } from '../../../../src/agent/counters/old-files.ts';
import { temporaryFolder } from '../../../support/native/node.ts';

test('counter files of an earlier agent are removed once, with one line in the log', (t) => {
  const folder = temporaryFolder(t);
  for (const name of ['counters.json', 'counters.values', 'counters.values.2', 'audit.log'])
    writeFileSync(join(folder, name), '{');
  const infos: string[] = [];
  const log = { info: (text: string) => void infos.push(text), warn: (text: string) => t.fail(text) };
  removeOldCounterFiles(folder, log);
  removeOldCounterFiles(folder, log);
  t.deepEqual(readdirSync(folder), ['audit.log']);
  t.is(infos.length, 1);
  t.regex(infos[0] ?? '', /counters\.json, .*counters\.values\.2 of an earlier agent: counters start at 0/);
});
