// Removes the files in which earlier agents kept counters over a restart. Counters start at 0 with each agent now.
import { existsSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';

const OLD_FILES = [
  'counters.json',
  'counters.json.new',
  'counters.json.unread',
  'counters.values',
  'counters.values.2',
];

export function removeOldCounterFiles(stateFolder: string, log: Pick<Logger, 'info' | 'warn'>): void {
  const found = OLD_FILES.map((name) => join(stateFolder, name)).filter((path) => existsSync(path));
  if (found.length === 0) return;
  try {
    for (const path of found) unlinkSync(path);
    log.info(`removed ${found.join(', ')} of an earlier agent: counters start at 0 with each agent`);
  } catch (error) {
    log.warn(`counter files of an earlier agent cannot be removed: ${(error as Error).message}`);
  }
}
