// Runs commands in the guest for the test outside: a POST with a command answers its code and output as JSON.
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { json, text } from 'node:stream/consumers';

type Asked = { readonly command: readonly string[]; readonly input?: string };

async function run({ command: [file = '', ...args], input = '' }: Asked): Promise<object> {
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  const failed = new Promise<number>((resolve) => child.once('error', () => resolve(127)));
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const [out, err] = [text(child.stdout), text(child.stderr)];
  const code = await Promise.race([ended, failed]);
  return { code, out: await out, err: await err };
}

createServer(async (incoming, response) => {
  const answer = await run((await json(incoming)) as Asked);
  response.end(JSON.stringify(answer));
}).listen(Number(process.argv[2]), () => console.log('the guest listens'));
