// The agent's settings from a file and flags over it, for each of its halves.
import {
  type AgentConfiguration,
  checkTogether,
  configure,
  DEFAULTS,
  isText,
  readSettings,
} from '../agent/configuration.ts';
import { settingOf, UsageError } from './command.ts';

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
