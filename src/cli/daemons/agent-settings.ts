// The agent's settings from a file and flags over it, for each of its halves, and whether what they name is there: who starts a
// daemon is told of that in a sentence.
import { mkdirSync, mkdtempSync, rmdirSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import {
  type AgentConfiguration,
  checkTogether,
  configure,
  DEFAULTS,
  isText,
  readSettings,
} from '../../agent/config.ts';
import { openBearerTokenFile } from '../../serving/bearer-token-file.ts';
import { readCertificate } from '../../serving/tls-files.ts';
import { settingOf, UsageError } from '../lib/command.ts';

export function configurationOf(file: string | undefined, pairs: readonly string[]): AgentConfiguration {
  try {
    const fromFile = file === undefined ? DEFAULTS : configure(readSettings(file), file);
    const settings = Object.fromEntries(
      pairs.map((pair) => {
        const at = pair.indexOf('=');
        if (at < 1) throw new Error(`--set ${pair}: want PATH=VALUE`);
        const [path, value] = [pair.slice(0, at), pair.slice(at + 1)];
        return [path, isText(path) ? value : settingOf(value)];
      }),
    );
    return checkTogether(configure(settings, '--set', fromFile));
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

/** The files by which the page is served, and to whom. They are followed later on; at the start they have to serve. */
export async function checkPageFiles({ page }: AgentConfiguration): Promise<void> {
  const { bearerTokenFile, certFile, keyFile } = page;
  if (bearerTokenFile !== '')
    await openBearerTokenFile(bearerTokenFile, () => 0).catch((error: Error) => {
      throw new UsageError(`page.bearerTokenFile: ${error.message}`);
    });
  if (certFile !== '')
    await readCertificate({ certFile, keyFile }).catch((error: NodeJS.ErrnoException) => {
      throw new UsageError(`page.${error.path === keyFile ? 'keyFile' : 'certFile'}: ${error.message}`);
    });
}

/**
 * Folder by folder, and tries one in it: where there can be none (/proc), Node's own making of all of them goes on for ever. A disk
 * that is full is a problem for later: who is over is stopped without it.
 */
export function makeStateFolder({ stateFolder }: AgentConfiguration, onProblem: (text: string) => void): void {
  const wrong = (error: unknown) =>
    `stateFolder: nothing can be kept in ${stateFolder}: ${(error as NodeJS.ErrnoException).message}`;
  try {
    makeFolder(resolve(stateFolder));
  } catch (error) {
    throw new UsageError(wrong(error));
  }
  try {
    rmdirSync(mkdtempSync(join(stateFolder, '.trying-')));
  } catch (error) {
    if (!NO_ROOM.includes((error as NodeJS.ErrnoException).code ?? '')) throw new UsageError(wrong(error));
    onProblem(`${wrong(error)}; it is used all the same`);
  }
}

const NO_ROOM: readonly string[] = ['ENOSPC', 'EDQUOT'];

function makeFolder(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory()) return;
  if (found) throw new Error(`${path} is not a folder`);
  makeFolder(dirname(path));
  try {
    mkdirSync(path, { mode: 0o755 });
  } catch (error) {
    // The other half of the agent, or whoever else makes the same one, was quicker.
    const isThere =
      (error as NodeJS.ErrnoException).code === 'EEXIST' && statSync(path, { throwIfNoEntry: false })?.isDirectory();
    if (!isThere) throw error;
  }
}
