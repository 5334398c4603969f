// The type of a CLI command, and the parsing of its arguments: options, usage texts, exit codes. Each command is in its
// own file.
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';
import { meantPercent, parsePercent, parseWhole, type WrongNumber, withoutMarks } from '../../common/quantity.ts';
import type { Result } from '../../common/result.ts';
import { nearNames } from './near.ts';

/** Takes a value where `value` names it in the usage text; else it is a switch. */
export type Option = {
  readonly short?: string;
  readonly multiple?: boolean;
  readonly value?: string;
  /** Values that shells complete. */
  readonly choices?: readonly string[];
  readonly help: string;
};
export type Options = Readonly<Record<string, Option>>;

export type Parsed = {
  readonly values: Readonly<Record<string, string | boolean | (string | boolean)[] | undefined>>;
  readonly operands: readonly string[];
};

export type Command = {
  readonly name: string;
  readonly summary: string;
  /** Usage after "cotenant NAME". */
  readonly usage: string;
  readonly options: Options;
  readonly notes?: string;
  /** Parses its arguments in its own way: most are those of another program. */
  readonly parse?: ((args: readonly string[]) => Parsed | 'help') | undefined;
  /** Takes arguments besides its options. */
  readonly takesOperands?: true;
  /** Exit code. `all`: every command of the program. */
  run(parsed: Parsed, all: () => Promise<readonly Command[]>): Promise<number>;
};

/** An error that the user can fix; shown without a stack. */
export class UsageError extends Error {}

/** What was asked for was refused or does not exist: exit code 1, shown without a stack. */
export class Refused extends Error {}

export const HELP: Option = { short: 'h', help: 'show this' };

export function usageOf(command: Command): string {
  const rows = Object.entries({ ...command.options, help: HELP }).map(([name, option]) => {
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
  if (command.parse) return command.parse(args);
  const options: ParseArgsOptionsConfig = {};
  for (const [name, { value, short, multiple = false }] of Object.entries({ ...command.options, help: HELP }))
    options[name] = { type: value ? 'string' : 'boolean', multiple, ...(short && { short }) };
  let parsed: Parsed;
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true });
    if (values.help) return 'help';
    parsed = { values: values as Parsed['values'], operands: positionals };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') throw new UsageError(unknownOption(command, message));
    throw new UsageError(wrongValue(message));
  }
  if (parsed.operands.length > 0 && !command.takesOperands)
    throw new UsageError(`unexpected argument: ${parsed.operands.join(' ')}`);
  return parsed;
}

/** The errors of node's parser about an option's value, in the words of the others. */
function wrongValue(message: string): string {
  const [, ambiguous] = /argument is ambiguous.* use '(--[\w-]+)=-XYZ/s.exec(message) ?? [];
  if (ambiguous) return `${ambiguous}: its value is missing; one that begins with a dash is written ${ambiguous}=-…`;
  const [, option, problem] = /^Option '(?:-\w, )?(--[\w-]+)[^']*' (.*)$/.exec(message) ?? [];
  if (problem === 'argument missing') return `${option}: its value is missing`;
  return problem === 'does not take an argument' ? `${option}: takes no value` : message;
}

function unknownOption({ name, options }: Command, message: string): string {
  const [, given = ''] = /'(-[^']*)'/.exec(message) ?? [];
  const near = nearNames(given.replace(/^-+/, ''), Object.keys(options)).map((one) => `--${one}`);
  const remedy = near.length > 0 ? `did you mean ${anyOf(near)}?` : `cotenant ${name} --help lists its options`;
  return `${name} has no option ${given}; ${remedy}`;
}

export function text(parsed: Parsed, name: string): string | undefined {
  const value = parsed.values[name];
  return typeof value === 'string' ? value : undefined;
}

export function flag(parsed: Parsed, name: string): boolean {
  return parsed.values[name] === true;
}

/** Of an option that may be given several times. */
export const texts = (parsed: Parsed, name: string): readonly string[] =>
  (parsed.values[name] as readonly string[] | undefined) ?? [];

/** An option as it was given, for messages: an empty value, and blanks and quotes around it, are visible. */
export const given = (name: string, value: string): string =>
  `--${name} ${value === '' || value !== withoutMarks(value) ? JSON.stringify(value) : value}`;

/** A whole number within the bounds. */
export const whole = (parsed: Parsed, name: string, least: number, most: number): number | undefined =>
  numberWithin(parsed, name, { least, most, meant: (value) => meantIn(parseWhole(value, least, most)) });

type PercentBounds = {
  readonly least: number;
  readonly most: number;
  /** It is the total over these; `unknown`: of a tenant whose number is known to the agent or the cluster alone. */
  readonly gpus?: number | 'unknown';
  /** Less is refused elsewhere, and not proposed. */
  readonly leastMeant?: number | undefined;
};

/** Whole percent within the bounds; what a writer of "50%" or "0.5" meant is proposed, as the total over all GPUs. */
export function percent(parsed: Parsed, name: string, bounds: PercentBounds): number | undefined {
  const { least, most, gpus = 1, leastMeant = least } = bounds;
  if (gpus === 'unknown') {
    const meant = (value: string): Meant | undefined => {
      const each = meantPercent(value);
      // More than one GPU has is a total already.
      if (each === undefined || each < 1 || each > 100) return meantIn(parsePercent(value, least, most));
      return `${each} for each of its GPUs (${2 * each} for two)`;
    };
    return numberWithin(parsed, name, { least, most, meant });
  }
  const meant = (value: string): number | undefined => {
    const each = gpus > 1 ? meantPercent(value) : undefined;
    const total = each === undefined ? meantIn(parsePercent(value, least, most)) : each * gpus;
    return total !== undefined && total % gpus === 0 && total >= leastMeant && total <= most ? total : undefined;
  };
  return numberWithin(parsed, name, { least, most, meant });
}

const meantIn = (read: Result<number, WrongNumber>): number | undefined => (read.ok ? read.value : read.error.meant);

type Bounds = {
  readonly least: number;
  readonly most: number;
  readonly meant: (value: string) => Meant | undefined;
};

/** What would be right, behind "write". */
type Meant = number | string;

/** Digits only. What was meant by other texts is proposed. */
function numberWithin(parsed: Parsed, name: string, { least, most, meant }: Bounds): number | undefined {
  const value = text(parsed, name);
  if (value === undefined) return undefined;
  const number = Number(value);
  const isDigits = /^\d{1,9}$/.test(value);
  if (isDigits && number >= least && number <= most) return number;
  const proposed = isDigits ? undefined : meant(value);
  const sign = value.includes('%') ? ', without the percent sign' : '';
  const right = proposed === undefined ? '' : `; write ${proposed}${sign}`;
  throw new UsageError(`${given(name, value)}: want ${least} to ${most}${right}`);
}

export const port = (parsed: Parsed, name: string): number | undefined => whole(parsed, name, 0, 65535);

/** `a, b or c` */
export const anyOf = (names: readonly string[]): string => names.join(', ').replace(/, ([^,]*)$/, ' or $1');

export function choice<const T extends string>(parsed: Parsed, name: string, choices: readonly T[]): T | undefined {
  const value = text(parsed, name);
  const found = choices.find((one) => one === value);
  if (value !== undefined && found === undefined) throw new UsageError(`${given(name, value)}: want ${anyOf(choices)}`);
  return found;
}

/** Settings given as flags, by their path in the configuration file; numbers and booleans are parsed. */
export function settingOf(value: string): unknown {
  if (value === 'true' || value === 'false') return value === 'true';
  return /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value;
}
