// --log-format and --log-level of the daemons, and the logger that they choose.
import { createLogger, LOG_FORMATS, LOG_LEVELS, type RootLogger } from '../../common/logger.ts';
import { choice, type Options, type Parsed } from './command.ts';

export const LOG_OPTIONS = {
  'log-format': { value: 'FORMAT', choices: LOG_FORMATS, help: 'of the log on standard error: text (default) or json' },
  'log-level': {
    value: 'LEVEL',
    choices: LOG_LEVELS,
    help: 'least level that is logged: debug, info (default), warn or error',
  },
} satisfies Options;

type LogSettings = Readonly<{
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
    format: choice(parsed, 'log-format', LOG_FORMATS) ?? settings.format,
    level: choice(parsed, 'log-level', LOG_LEVELS) ?? settings.level,
  });
}
