// What kubectl asks a plugin for when its user presses Tab: KEP-2379, "Shell Completion Support". kubectl runs the file
// `kubectl_complete-cotenant` on the PATH with the words typed after `kubectl cotenant`.
import type { Command, Option } from '../../lib/command.ts';
import { isPath, OPERANDS, optionsOf } from './completion.ts';

/** Cobra's directives, by which a shell adds files to what was offered, or nothing. */
const FILES = 0;
const NO_FILES = 4;

/** @param words The last one is being typed.
 *  @returns One offer per line, with a tab before what it means, then a line with Cobra's directive. */
export function completeForKubectl(words: readonly string[], commands: readonly Command[]): string {
  const { offers, directive } = offersFor(words, commands);
  const typed = words.at(-1) ?? '';
  const fitting = offers.filter((offer) => offer.startsWith(typed));
  return [...fitting, `:${directive}`, ''].join('\n');
}

type Offers = { readonly offers: readonly string[]; readonly directive: number };

function offersFor(words: readonly string[], commands: readonly Command[]): Offers {
  const [name, ...rest] = words;
  if (rest.length === 0) {
    const offers = commands.map((command) => `${command.name}\t${command.summary}`);
    return { offers, directive: NO_FILES };
  }
  const command = commands.find((one) => one.name === name);
  if (!command) return { offers: [], directive: NO_FILES };
  const typed = rest.at(-1) ?? '';
  const options = optionsOf(command);
  const valued = (word: string | undefined) =>
    options.find(([long, { short, value }]) => value !== undefined && (word === `--${long}` || word === `-${short}`));
  const ofPrevious = valued(rest.at(-2));
  if (ofPrevious) return valuesOf(ofPrevious[1]);
  if (typed.startsWith('--') && typed.includes('=')) {
    const [long = ''] = typed.split('=');
    const option = valued(long);
    return option ? valuesOf(option[1], `${long}=`) : { offers: [], directive: NO_FILES };
  }
  if (typed.startsWith('-'))
    return { offers: options.map(([long, { help }]) => `--${long}\t${help}`), directive: NO_FILES };
  const operands = OPERANDS[command.name];
  if (operands) return { offers: operands, directive: NO_FILES };
  return { offers: [], directive: command.takesOperands ? FILES : NO_FILES };
}

const valuesOf = (option: Option, before = ''): Offers => ({
  offers: (option.choices ?? []).map((choice) => `${before}${choice}`),
  directive: isPath(option) ? FILES : NO_FILES,
});
