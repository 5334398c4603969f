#!/usr/bin/env node
// The program `cotenant`: the table of commands, how errors are shown (usage errors in one sentence, internal errors
// with a stack), and what happens when the reader of standard output goes away.
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { anyOf, type Command, parse, Refused, UsageError, usageOf } from './lib/command.ts';
import { nearNames } from './lib/near.ts';
import { untilSignal } from './lib/run-until-signal.ts';

/** Each loaded when it is asked for: the daemons bring libraries that `cotenant run` should not wait for. */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  run: async () => (await import('./commands/grants/run.ts')).run,
  docker: async () => (await import('./commands/grants/engines.ts')).docker,
  podman: async () => (await import('./commands/grants/engines.ts')).podman,
  nerdctl: async () => (await import('./commands/grants/engines.ts')).nerdctl,
  slices: async () => (await import('./commands/grants/slices.ts')).slices,
  top: async () => (await import('./commands/status/top.ts')).top,
  inspect: async () => (await import('./commands/status/inspect.ts')).inspect,
  why: async () => (await import('./commands/status/why.ts')).why,
  get: async () => (await import('./commands/status/get.ts')).get,
  set: async () => (await import('./commands/grants/set.ts')).set,
  recommend: async () => (await import('./commands/usage/recommend.ts')).recommend,
  showback: async () => (await import('./commands/usage/showback.ts')).showback,
  convert: async () => (await import('./commands/planning/convert.ts')).convert,
  fits: async () => (await import('./commands/planning/fits.ts')).fits,
  defrag: async () => (await import('./commands/planning/defrag.ts')).defrag,
  templates: async () => (await import('./commands/planning/templates.ts')).templates,
  driver: async () => (await import('./commands/maintenance/driver.ts')).driver,
  agent: async () => (await import('./daemons/agent.ts')).agent,
  exporter: async () => (await import('./daemons/exporter.ts')).exporter,
  webhook: async () => (await import('./daemons/webhook.ts')).webhook,
  scheduler: async () => (await import('./daemons/scheduler.ts')).scheduler,
  'uninstall-check': async () => (await import('./commands/maintenance/uninstall-check.ts')).uninstallCheck,
  doctor: async () => (await import('./commands/maintenance/doctor.ts')).doctor,
  completion: async () => (await import('./commands/maintenance/completion.ts')).completion,
  demo: async () => (await import('./demo/demo.ts')).demo,
};
const DAEMONS: readonly string[] = ['agent', 'exporter', 'webhook', 'scheduler'];
const PACKAGE = new URL('../../package.json', import.meta.url);
const VERSION = (JSON.parse(readFileSync(PACKAGE, 'utf8')) as { version: string }).version;

const loadAll = () => Promise.all(Object.values(COMMANDS).map((load) => load()));

async function overview(): Promise<string> {
  const commands = await loadAll();
  const width = Math.max(...commands.map((command) => command.name.length));
  const lines = commands.map((command) => `  ${command.name.padEnd(width)}  ${command.summary}`);
  return `usage: cotenant COMMAND [OPTIONS]\n\n${lines.join('\n')}\n\ncotenant COMMAND --help shows the options of a command. Version ${VERSION}.\n`;
}

async function main(args: readonly string[]): Promise<number> {
  if (basename(process.argv[1] ?? '') === 'kubectl_complete-cotenant') {
    const { completeForKubectl } = await import('./commands/maintenance/kubectl-completion.ts');
    process.stdout.write(completeForKubectl(args, await loadAll()));
    return 0;
  }
  const [name, ...rest] = args;
  const isHelp = (word = '') => ['help', '--help', '-h'].includes(word);
  const topic = isHelp(name) ? rest.find((word) => !isHelp(word)) : undefined;
  if (topic !== undefined) return main([topic, '--help']);
  if (name === undefined || isHelp(name)) {
    process.stdout.write(await overview());
    return name === undefined ? 2 : 0;
  }
  if (name === '--version' || name === 'version') {
    console.log(VERSION);
    return 0;
  }
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (!load) {
    const names = Object.keys(COMMANDS);
    const near = nearNames(name, names);
    const remedy = near.length > 0 ? `did you mean ${anyOf(near)}?` : `there are ${names.join(', ')}`;
    throw new UsageError(`no command ${name}; ${remedy}`);
  }
  // Loading takes a while, too.
  if (DAEMONS.includes(name)) void untilSignal();
  const command = await load();
  const parsed = parse(command, rest);
  if (parsed === 'help') {
    process.stdout.write(usageOf(command));
    return 0;
  }
  return command.run(parsed, loadAll);
}

/** 128 + SIGPIPE, as a shell shows the end of a program that does not ignore that signal. */
const READER_GONE = 141;
/** Once standard output cannot be written. */
let outputGone: number | undefined;

process.stdout.on('error', ({ code, message }: NodeJS.ErrnoException) => {
  // A daemon's work does not depend on its log.
  if (outputGone !== undefined || DAEMONS.includes(process.argv[2] ?? '')) return;
  outputGone = code === 'EPIPE' ? READER_GONE : 1;
  if (code !== 'EPIPE') console.error(`cotenant: standard output: ${message}`);
  // A command that has processes or files to remove ends as at a hangup.
  if (process.listenerCount('SIGHUP') > 0) process.emit('SIGHUP', 'SIGHUP');
  else process.exit(outputGone);
});

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const { syscall, message } = error as NodeJS.ErrnoException;
  // For a port that is in use or not permitted a stack would not help.
  const mistake = error instanceof UsageError || syscall === 'listen';
  console.error(mistake || error instanceof Refused ? `cotenant: ${message}` : error);
  process.exitCode = mistake ? 2 : 1;
}
if (outputGone !== undefined) process.exitCode = outputGone;
