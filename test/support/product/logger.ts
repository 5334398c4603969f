// A logger whose messages a test can read; repeated ones are counted as in production.
import { createLogger, type Logger, type LogLevel } from '../../../src/common/logger.ts';

export function loggerTo(messages: { push(message: string): unknown }, level: LogLevel = 'info'): Logger {
  const write = (line: string) => messages.push((JSON.parse(line) as { msg: string }).msg);
  return createLogger({ component: 'test', format: 'json', level, write });
}
