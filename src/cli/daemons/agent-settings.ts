// The agent's settings from a file and flags over it, for both halves, and a check of the files and folders that they
// name.
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
import { type Options, settingOf, UsageError } from '../lib/command.ts';

export const SETTING_OPTIONS = {
  config: { short: 'c', value: 'FILE', help: "the agent's settings, YAML or JSON" },
  set: {
    short: 's',
    multiple: true,
    value: 'PATH=VALUE',
    help: 'one setting over the file, such as enforcement.mode=report',
  },
} satisfies Options;

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

/** Certificate, key and token files have to be usable at the start; later changes are followed. */
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
 * Creates folder by folder, and tries to create one in it: where none can be created (/proc), Node's recursive mkdir
 * never ends. A disk that is full is only logged: containers over their grant are stopped without it.
 */
export function makeStateFolder({ stateFolder }: AgentConfiguration, onProblem: (text: string) => void): void {
  const wrong = (error: unknown) =>
    `stateFolder: cannot write to ${stateFolder}: ${(error as NodeJS.ErrnoException).message}`;
  try {
    makeFolder(resolve(stateFolder));
  } catch (error) {
    throw new UsageError(wrong(error));
  }
  try {
    rmdirSync(mkdtempSync(join(stateFolder, '.trying-')));
  } catch (error) {
    if (!NO_ROOM.includes((error as NodeJS.ErrnoException).code ?? '')) throw new UsageError(wrong(error));
    onProblem(`${wrong(error)}; the agent starts all the same`);
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
    // Another process, such as the other half of the agent, created it first.
    const isThere =
      (error as NodeJS.ErrnoException).code === 'EEXIST' && statSync(path, { throwIfNoEntry: false })?.isDirectory();
    if (!isThere) throw error;
  }
}
