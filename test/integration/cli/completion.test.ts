// The completion scripts in real shells: bash of this machine, zsh and fish from Debian's packages, unpacked.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { temporaryFolder } from '../../support/native/node.ts';
import { cotenant, MAIN } from '../../support/product/cli.ts';
import { debianPackages, packagesFolder, type Wanted } from '../../support/toolchains/debian.ts';

const WANTED: readonly Wanted[] = ['zsh', 'fish'].map((name) => ({ name, from: 'own', as: 'needs' }));

/** Lines as they are typed up to the Tab key, and what is offered. */
const CASES: readonly (readonly [line: string, offered: readonly string[]])[] = [
  ['cotenant sl', ['slices']],
  ['cotenant se', ['set']],
  ['cotenant set --gpu-', ['--gpu-cores', '--gpu-cores-limit', '--gpu-memory']],
  ['cotenant get -o ', ['json', 'table', 'yaml']],
  ['cotenant get --output=y', ['yaml']],
  ['cotenant driver c', ['clear-xid']],
  ['cotenant completion ', ['bash', 'fish', 'zsh']],
  ['cotenant set --priority ', ['high', 'normal']],
];

function script(folder: string, shell: string): string {
  const { code, out, err } = cotenant('completion', shell);
  if (code !== 0) throw new Error(err);
  const path = join(folder, `completion.${shell}`);
  writeFileSync(path, out);
  return path;
}

test('bash completes commands, options and values', (t) => {
  const folder = temporaryFolder(t);
  // As readline does: words split at blanks and at the equals sign.
  const program = `source "$1"; shift
for line; do
  COMP_WORDS=(); read -ra words <<< "$line"
  for word in "\${words[@]}"; do
    if [[ $word == --*=* ]]; then COMP_WORDS+=("\${word%%=*}" = "\${word#*=}"); else COMP_WORDS+=("$word"); fi
  done
  [[ $line == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); _cotenant; echo "\${COMPREPLY[@]}"
done`;
  const lines = CASES.map(([line]) => line);
  const bash = spawnSync('bash', ['--norc', '-c', program, 'bash', script(folder, 'bash'), ...lines], {
    encoding: 'utf8',
  });
  t.is(bash.stderr, '');
  const offered = bash.stdout.trimEnd().split('\n');
  for (const [index, [line, words]] of CASES.entries()) t.deepEqual(offered[index]?.split(' ').toSorted(), words, line);
  const wrong = cotenant('completion', 'tcsh');
  t.deepEqual([wrong.code, wrong.err], [2, 'cotenant: want one of bash, zsh, fish\n']);
});

test('kubectl gets commands, options and values of its plugin', (t) => {
  const path = join(temporaryFolder(t), 'kubectl_complete-cotenant');
  symlinkSync(MAIN, path);
  const complete = (line: string) => {
    const words = line.split(' ').slice(1);
    const { stdout, stderr } = spawnSync(process.execPath, [path, ...words], { encoding: 'utf8' });
    t.is(stderr, '', line);
    const [directive, ...offered] = stdout.trimEnd().split('\n').toReversed();
    return { directive, offered: offered.map((offer) => offer.split('\t')[0]?.replace('--output=', '')).toSorted() };
  };
  for (const [line, words] of CASES) t.deepEqual(complete(line), { directive: ':4', offered: [...words] }, line);
  // Cobra's ShellCompDirectiveDefault: the shell offers files.
  for (const line of [
    'cotenant get --kubeconfig ',
    'cotenant get --kubeconfig=',
    'cotenant convert -f ',
    'cotenant run ',
  ])
    t.deepEqual(complete(line), { directive: ':0', offered: [] }, line);
  for (const line of ['cotenant nothing ', 'cotenant get -o x', 'cotenant get --none='])
    t.deepEqual(complete(line), { directive: ':4', offered: [] }, line);
});

const shells = debianPackages(packagesFolder('shells', WANTED), WANTED, (line) => console.error(line));
const inShells = shells.ok ? test : test.skip;
const root = shells.ok ? shells.root : '';
const title = (name: string) => (shells.ok ? name : `${name} (${shells.reason})`);

/** Runs a script in one of the unpacked shells. */
function inShell(folder: string, program: string, args: readonly string[]): string {
  const libraries = ['usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu'].map((name) => join(root, name)).join(':');
  const env = { PATH: process.env.PATH ?? '', HOME: folder, LD_LIBRARY_PATH: libraries, TERM: 'dumb' };
  mkdirSync(join(folder, '.config'), { recursive: true });
  const { stdout, stderr, status } = spawnSync(join(root, program), args, { encoding: 'utf8', env, timeout: 60_000 });
  if (status !== 0) throw new Error(`${program}: status ${status}: ${stderr}`);
  return stdout;
}

inShells(title('fish completes commands, options and values'), (t) => {
  const folder = temporaryFolder(t);
  const program = join(folder, 'try.fish');
  writeFileSync(
    program,
    `set -p fish_function_path ${join(root, 'usr/share/fish/functions')}
source ${script(folder, 'fish')}
for line in $argv
  echo "= $line"
  complete -C "$line"
end`,
  );
  const blocks = inShell(folder, 'usr/bin/fish', ['-N', program, ...CASES.map(([line]) => line)]).split(/^= /m);
  for (const [line, words] of CASES) {
    const [, ...offered] =
      blocks
        .find((block) => block.startsWith(`${line}\n`))
        ?.trimEnd()
        .split('\n') ?? [];
    const names = offered.map((one) => one.split('\t')[0]?.replace('--output=', '') ?? '');
    t.deepEqual(names.toSorted(), words, line);
  }
});

inShells(title('zsh completes commands, options and values'), (t) => {
  const folder = temporaryFolder(t);
  const [version = ''] = readdirSync(join(root, 'usr/share/zsh')).filter((name) => /^\d/.test(name));
  const functions = join(root, 'usr/share/zsh/functions');
  const modules = join(root, 'usr/lib/x86_64-linux-gnu/zsh', version);
  const program = join(folder, 'try.zsh');
  // What is offered is added by compadd, which is asked for it in place of showing a list.
  writeFileSync(
    program,
    `module_path=(${modules}); fpath=(${functions}/**/*(/N) ${functions})
zmodload zsh/zpty
zpty shell ${join(root, 'bin/zsh')} -f -i
zpty -w shell "module_path=($module_path); fpath=($fpath); PS1=; autoload -Uz compinit; compinit -u -D; source ${script(folder, 'zsh')}"
zpty -w shell 'compadd() { local -a found; builtin compadd -O found "$@"; (($#found)) && print -rl -- \${found/#/offered:} >> ${folder}/offered; builtin compadd "$@" }'
zpty -w shell "print -r ready > ${folder}/ready"
repeat 300; do [[ -e ${folder}/ready ]] && break; sleep 0.1; done
for line; do
  print -r -- "= $line" >> ${folder}/offered
  zpty -w -n shell "$line"$'\\t'
  zpty -w -n shell $'\\x15'"print -r > ${folder}/done"$'\\n'
  repeat 100; do [[ -e ${folder}/done ]] && break; sleep 0.1; done
  rm -f ${folder}/done
done
zpty -d shell
cat ${folder}/offered`,
  );
  const blocks = inShell(folder, 'bin/zsh', ['-f', program, ...CASES.map(([line]) => line)]).split(/^= /m);
  for (const [line, words] of CASES) {
    const block = blocks.find((one) => one.startsWith(`${line}\n`)) ?? '';
    const names = [...block.matchAll(/^offered:(.*?)=?$/gm)].map(([, name]) => name ?? '');
    t.deepEqual([...new Set(names)].toSorted(), words, line);
  }
});
