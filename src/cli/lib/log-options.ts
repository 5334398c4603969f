// --log-format and --log-level of the daemons, and the logger that they choose.
import { createLogger, LOG_FORMATS, LOG_LEVELS, type RootLogger } from '../../common/logger.ts';
import { type Option, type Parsed, text, UsageError } from './command.ts';

export const LOG_OPTIONS = {
  'log-format': { type: 'string', value: 'FORMAT', help: 'of the log on standard error: text (default) or json' },
  'log-level': {
    type: 'string',
    value: 'LEVEL',
    help: 'least level that is logged: debug, info (default), warn or error',
  },
} as const satisfies Readonly<Record<string, Option>>;

function choiceOf<T extends string>(parsed: Parsed, option: string, choices: readonly T[], otherwise: T): T {
  const value = text(parsed, option);
  if (value === undefined) return otherwise;
  const choice = choices.find((one) => one === value);
  if (choice === undefined) throw new UsageError(`--${option} ${value}: want one of ${choices.join(', ')}`);
  return choice;
}

export type LogSettings = Readonly<{
  format: (typeof LOG_FORMATS)[number];
  level: (typeof LOG_LEVELS)[number];
}>;

/** Flags take precedence over `settings`. */
export function loggerOf(
  parsed: Parsed,
  component: string,
  settings: LogSettings = { format: 'text', level: 'info' },
): RootLogger {
  return createLogger({
    component,
    format: choiceOf(parsed, 'log-format', LOG_FORMATS, settings.format),
    level: choiceOf(parsed, 'log-level', LOG_LEVELS, settings.level),
  });
}
