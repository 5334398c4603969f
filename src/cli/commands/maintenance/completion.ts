// `cotenant completion`: the script with which a shell completes commands, options and their values. It is made from the
// table of commands, so it has each option that the program has.
import { type Command, HELP, type Option, type Parsed, UsageError } from '../../lib/command.ts';

const SHELLS = { bash, zsh, fish } as const;
type Shell = keyof typeof SHELLS;
const NAMES = Object.keys(SHELLS) as readonly Shell[];

export const completion: Command = {
  name: 'completion',
  summary: 'Prints the script with which bash, zsh or fish completes commands, options and values.',
  usage: 'bash | zsh | fish',
  options: {},
  notes:
    'In ~/.bashrc: source <(cotenant completion bash). For kubectl cotenant: a link kubectl_complete-cotenant to this program on the PATH.',
  takesOperands: true,
  async run({ operands }: Parsed, all) {
    const [shell, ...rest] = operands;
    const known = NAMES.find((name) => name === shell);
    if (known === undefined || rest.length > 0) throw new UsageError(`want one of ${NAMES.join(', ')}`);
    process.stdout.write(`${SHELLS[known](await all()).join('\n')}\n`);
    return 0;
  },
};

/** What stands after a command without being an option. */
export const OPERANDS: Readonly<Record<string, readonly string[]>> = {
  completion: NAMES,
  docker: ['run'],
  podman: ['run'],
  nerdctl: ['run'],
  driver: ['release', 'take', 'status', 'clear-xid'],
};

export const optionsOf = ({ options }: Command): readonly (readonly [string, Option])[] =>
  Object.entries({ ...options, help: HELP });
const spelled = (name: string, { short }: Option): readonly string[] => [
  `--${name}`,
  ...(short === undefined ? [] : [`-${short}`]),
];
export const isPath = ({ value }: Option): boolean => value === 'FILE' || value === 'FOLDER';

function bash(commands: readonly Command[]): readonly string[] {
  const caseOf = (command: Command): readonly string[] => {
    const takesValue = optionsOf(command).filter(([, { value }]) => value !== undefined);
    return [
      `    ${command.name})`,
      '      case $prev in',
      ...takesValue.map(([name, option]) => {
        const words = option.choices?.join(' ');
        const reply = words === undefined ? (isPath(option) ? '-f' : '') : `-W '${words}'`;
        const line = reply === '' ? ':' : `COMPREPLY=($(compgen ${reply} -- "$cur"))`;
        return `        ${spelled(name, option).join('|')}) ${line}; return;;`;
      }),
      '      esac',
      `      options='${optionsOf(command)
        .map(([name]) => `--${name}`)
        .join(' ')}'`,
      `      operands='${(OPERANDS[command.name] ?? []).join(' ')}';;`,
    ];
  };
  return [
    '# bash completion of cotenant',
    '_cotenant() {',
    `  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD-1]} options= operands=`,
    '  COMPREPLY=()',
    // Bash splits an option from its value at the equals sign.
    `  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=\${COMP_WORDS[COMP_CWORD-2]}; fi`,
    `  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '${commands.map(({ name }) => name).join(' ')}' -- "$cur")); return; fi`,
    `  case \${COMP_WORDS[1]} in`,
    ...commands.flatMap(caseOf),
    '    *) return;;',
    '  esac',
    '  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$cur"))',
    '  elif [[ $operands ]]; then COMPREPLY=($(compgen -W "$operands" -- "$cur"))',
    '  else COMPREPLY=($(compgen -f -- "$cur")); fi',
    '}',
    'complete -F _cotenant cotenant',
  ];
}

function zsh(commands: readonly Command[]): readonly string[] {
  const quoted = (text: string) => `'${text.replace(/[\\[\]:]/g, '\\$&').replaceAll("'", "'\\''")}'`;
  const quotedRaw = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
  const specOf = ([name, option]: readonly [string, Option]): string => {
    const { value, choices, multiple, help, short } = option;
    const escapedHelp = help.replace(/[\\[\]:]/g, '\\$&');
    const action = choices ? `(${choices.join(' ')})` : isPath(option) ? '_files' : ' ';
    const argument = value === undefined ? '' : `:${value}:${action}`;
    const again = multiple ? '*' : '';
    const long = quotedRaw(`${again}--${name}${value === undefined ? '' : '='}[${escapedHelp}]${argument}`);
    return short === undefined ? long : `${quotedRaw(`${again}-${short}[${escapedHelp}]${argument}`)} ${long}`;
  };
  return [
    '#compdef cotenant',
    '_cotenant() {',
    '  local -a commands=(',
    ...commands.map(({ name, summary }) => `    ${quoted(name).slice(0, -1)}:${quoted(summary).slice(1)}`),
    '  )',
    "  if ((CURRENT == 2)); then _describe -t commands 'command' commands; return; fi",
    '  local command=$words[2]',
    '  shift words; ((CURRENT--))',
    '  case $command in',
    ...commands.map((command) => {
      const words = OPERANDS[command.name];
      const operand = words ? `'*:argument:(${words.join(' ')})'` : command.takesOperands ? "'*:argument:_files'" : '';
      return `    ${command.name}) _arguments -s ${optionsOf(command).map(specOf).join(' ')} ${operand};;`;
    }),
    '  esac',
    '}',
    // Also by "source <(cotenant completion zsh)"; from a folder of functions it is called by its name.
    'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _cotenant "$@"; else compdef _cotenant cotenant; fi',
  ];
}

function fish(commands: readonly Command[]): readonly string[] {
  const quoted = (text: string) => `'${text.replace(/[\\']/g, '\\$&')}'`;
  const linesOf = (command: Command): readonly string[] => {
    const during = `complete -c cotenant -n '__fish_seen_subcommand_from ${command.name}'`;
    const words = OPERANDS[command.name];
    return [
      `complete -c cotenant -n __fish_use_subcommand -f -a ${command.name} -d ${quoted(command.summary)}`,
      ...(words ? [`${during} -f -a ${quoted(words.join(' '))}`] : []),
      ...optionsOf(command).map(([name, option]) => {
        const { short, value, choices, help } = option;
        const letter = short === undefined ? '' : ` -s ${short}`;
        const argument =
          value === undefined
            ? ''
            : choices
              ? ` -x -a ${quoted(choices.join(' '))}`
              : isPath(option)
                ? ' -r -F'
                : ' -x';
        return `${during} -l ${name}${letter}${argument} -d ${quoted(help)}`;
      }),
    ];
  };
  return ['# fish completion of cotenant', ...commands.flatMap(linesOf)];
}
