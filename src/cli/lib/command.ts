// The type of a CLI command, and the parsing of its arguments: options, usage texts, exit codes. Each command is in its
// own file.
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';

export type Option = {
  readonly type: 'string' | 'boolean';
  readonly short?: string;
  readonly multiple?: boolean;
  /** The value's name in the usage text, and its type. */
  readonly value?: string;
  readonly help: string;
};

export type Parsed = {
  readonly values: Readonly<Record<string, string | boolean | (string | boolean)[] | undefined>>;
  readonly words: readonly string[];
};

export type Command = {
  readonly name: string;
  readonly summary: string;
  /** Usage after "cotenant NAME". */
  readonly usage: string;
  readonly options: Readonly<Record<string, Option>>;
  readonly notes?: string;
  /** Exit code. */
  run(parsed: Parsed): Promise<number>;
};

/** An error that the user can fix; shown without a stack. */
export class UsageError extends Error {}

export function usageOf(command: Command): string {
  const rows = Object.entries({
    ...command.options,
    help: { type: 'boolean', short: 'h', help: 'show this' } as Option,
  }).map(([name, option]) => {
    const short = option.short ? `-${option.short}, ` : '    ';
    const value = option.value ? ` ${option.value}` : '';
    return [`  ${short}--${name}${value}`, option.help] as const;
  });
  const width = Math.max(...rows.map(([left]) => left.length));
  const lines = rows.map(([left, right]) => `${left.padEnd(width)}  ${right}`);
  const notes = command.notes ? `\n${command.notes}\n` : '';
  return `usage: cotenant ${command.name} ${command.usage}\n\n${command.summary}\n\n${lines.join('\n')}\n${notes}`;
}

/** Arguments after `--` are not parsed. */
export function parse(command: Command, args: readonly string[]): Parsed | 'help' {
  const options: ParseArgsOptionsConfig = { help: { type: 'boolean', short: 'h' } };
  for (const [name, { type, short, multiple }] of Object.entries(command.options)) {
    options[name] = { type, ...(short ? { short } : {}), ...(multiple ? { multiple } : {}) };
  }
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true, strict: true });
    if (values.help) return 'help';
    return { values: values as Parsed['values'], words: positionals };
  } catch (error) {
    const { message } = error as Error;
    const [, option] = /argument is ambiguous.* use '(--[\w-]+)=-XYZ/s.exec(message) ?? [];
    throw new UsageError(
      option === undefined
        ? message
        : `${option}: its value is missing; one that begins with a dash is written ${option}=-…`,
    );
  }
}

export function text(parsed: Parsed, name: string): string | undefined {
  const value = parsed.values[name];
  return typeof value === 'string' ? value : undefined;
}

export function flag(parsed: Parsed, name: string): boolean {
  return parsed.values[name] === true;
}

/** Settings given as flags, by their path in the configuration file; numbers and booleans are parsed. */
export function settingOf(value: string): unknown {
  if (value === 'true' || value === 'false') return value === 'true';
  return /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value;
}
