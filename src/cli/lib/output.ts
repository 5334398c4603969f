// How a command prints what it found: a table for people, or JSON or YAML for programs.
import { choice, flag, type Options, type Parsed, UsageError } from './command.ts';
import { jsonText, yamlText } from './text.ts';

const FORMS = ['table', 'json', 'yaml'] as const;
type Form = (typeof FORMS)[number];

/** `more`: forms of this command alone. */
export const outputOptions = (help: string, more: readonly string[] = []): Options => ({
  output: { short: 'o', value: 'FORM', choices: [...FORMS, ...more], help },
  json: { help: 'the same as -o json' },
});
export const OUTPUT_OPTIONS = outputOptions('table (default), json or yaml');

/** `table` unless another is asked for. */
export function formOf<const T extends string = never>(parsed: Parsed, more: readonly T[] = []): T | Form {
  const form = choice(parsed, 'output', [...FORMS, ...more]);
  if (!flag(parsed, 'json')) return form ?? 'table';
  if (form !== undefined && form !== 'json') throw new UsageError(`-o ${form} and --json: want one of them`);
  return 'json';
}

/** The lines of the table, or the value in the form that is asked for. */
export async function print(parsed: Parsed, value: unknown, lines: () => readonly string[]): Promise<void> {
  const form = formOf(parsed);
  if (form === 'yaml') process.stdout.write(await yamlText(value));
  else console.log(form === 'json' ? jsonText(value) : lines().join('\n'));
}
