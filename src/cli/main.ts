#!/usr/bin/env node
// The one binary. Owns the table of commands and how failures are shown: a mistake of usage in one sentence, a fault of ours
// with its stack.
import { VERSION } from '../agent/agent.ts';
import { agent } from './agent.ts';
import { type Command, parse, UsageError, usageOf } from './command.ts';
import { demo } from './demo.ts';
import { run } from './run.ts';
import { inspect, set, top, why } from './show.ts';
import { webhook } from './webhook.ts';

const COMMANDS: readonly Command[] = [run, top, inspect, why, set, agent, webhook, demo];

function overview(): string {
  const width = Math.max(...COMMANDS.map((command) => command.name.length));
  const lines = COMMANDS.map((command) => `  ${command.name.padEnd(width)}  ${command.summary}`);
  return `usage: cotenant COMMAND [OPTIONS]\n\n${lines.join('\n')}\n\ncotenant COMMAND --help says more; cotenant --version says ${VERSION}.\n`;
}

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args;
  if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
    process.stdout.write(overview());
    return name === undefined ? 2 : 0;
  }
  if (name === '--version') {
    console.log(VERSION);
    return 0;
  }
  const command = COMMANDS.find((candidate) => candidate.name === name);
  if (!command) throw new UsageError(`no command ${name}; there are ${COMMANDS.map((entry) => entry.name).join(', ')}`);
  const parsed = parse(command, rest);
  if (parsed === 'help') {
    process.stdout.write(usageOf(command));
    return 0;
  }
  return command.run(parsed);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const mistake = error instanceof UsageError;
  console.error(mistake ? `cotenant: ${error.message}` : error);
  process.exitCode = mistake ? 2 : 1;
}
