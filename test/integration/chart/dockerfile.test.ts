// The Dockerfile held against the repository and the chart: what it copies exists and reaches the builder, what it
// leaves out is not needed, and that it runs as a user without rights. That it builds is not shown here, since there is no Docker daemon.
import { existsSync, globSync, readFileSync } from 'node:fs';
import { isBuiltin } from 'node:module';
import { dirname, join, relative } from 'node:path';
import test from 'ava';
import { reachesBuilder, readDockerfile, type Stage } from './dockerfile.ts';

const root = join(import.meta.dirname, '../../..');
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const stages = readDockerfile(read('Dockerfile'));
const manifest = JSON.parse(read('package.json'));
const final = stages.at(-1) as Stage;

const copies = (stage: Stage) => stage.instructions.filter(({ name }) => name === 'COPY').map(({ args }) => args);
/** What the program is made of, by where that lies in the image. */
const program = (stage: Stage) =>
  copies(stage).flatMap((args) => args.slice(-1).flatMap((to) => (to.startsWith('program/') ? to.slice(8) : [])));
const fromRepository = (stage: Stage) =>
  copies(stage)
    .filter(([first = '']) => !first.startsWith('--from='))
    .flatMap((args) => args.slice(0, -1));

test('one stage builds and one runs, on one Debian and the Node that the tests run', (t) => {
  t.deepEqual(
    stages.map(({ name, from }) => `${name ?? 'final'}: ${from}`),
    [
      `build: node:${manifest.devDependencies.node}-bookworm`,
      `final: node:${manifest.devDependencies.node}-bookworm-slim`,
    ],
  );
  for (const { from } of stages) t.regex(from, /^[a-z/]+:\d+\.\d+\.\d+-bookworm/, 'a version, and not "latest"');
  t.true(Number.parseInt(manifest.devDependencies.node, 10) >= 24);
});

test('copied files are in the repository and reach the builder, and nothing else does', (t) => {
  const copied = stages.flatMap(fromRepository);
  t.true(copied.includes('src') && copied.includes('native'));
  const ignore = read('.dockerignore');
  for (const path of copied) {
    t.true(existsSync(join(root, path)), `${path} does not exist`);
    t.true(reachesBuilder(ignore, path), `${path} is ignored`);
  }
  for (const path of [
    '.git',
    'test',
    'test/run.ts',
    'node_modules',
    'charts',
    'native/build',
    'native/build/o/x.o',
    '.env',
  ]) {
    t.false(reachesBuilder(ignore, path), path);
  }
  const allowed = ignore.split('\n').filter((line) => line.startsWith('!'));
  // A file inside of a folder that is sent comes with it.
  const sent = new Set(copied.map((path) => (copied.includes(dirname(path)) ? dirname(path) : path)));
  t.deepEqual(allowed.map((line) => line.slice(1)).sort(), [...sent].sort());
});

test('each stage is copied from by its name, from where that stage has put things', (t) => {
  const [build] = stages;
  const home = build?.instructions.find(({ name }) => name === 'WORKDIR')?.args[0] ?? '';
  const taken = copies(final).filter(([first = '']) => first.startsWith('--from='));
  t.true(taken.length > 0);
  for (const [from = '', path = ''] of taken) {
    t.is(from, `--from=${build?.name}`);
    t.true(path.startsWith(`${home}/`), path);
  }
  const made = build?.instructions.filter(({ name }) => name === 'RUN').map(({ text }) => text) ?? [];
  t.regex(made[0] ?? '', /\bnpm ci --omit=dev\b/);
  t.regex(made[1] ?? '', /^make -C native\b/);
  t.is(made[2], 'node image/strip-types.ts program');
  t.true(taken.some(([, path, to]) => path === `${home}/program` && to === './'));
});

test("the image runs as the chart's unprivileged user and passes its arguments on", (t) => {
  const [user] = final.instructions.filter(({ name }) => name === 'USER').flatMap(({ args }) => args);
  const [uid = '', gid = ''] = user?.split(':') ?? [];
  t.true(Number(uid) > 1000 && Number(gid) > 1000, `USER ${user}`);
  const helpers = read('charts/cotenant/templates/_helpers.tpl');
  t.is(/define "cotenant.user" -}}(\d+)/.exec(helpers)?.[1], uid);
  const home = final.instructions.find(({ name }) => name === 'WORKDIR')?.args[0] ?? '';
  const entry = final.instructions.find(({ name }) => name === 'ENTRYPOINT')?.args;
  t.deepEqual(entry, ['node', `${home}/${manifest.bin.cotenant.replace(/\.ts$/, '.js')}`]);
  const [build] = stages as [Stage];
  t.true(program(build).some((path) => manifest.bin.cotenant.startsWith(`${path}/`)));
});

test('the image has no tools to install or build with', (t) => {
  const runs = final.instructions.filter(({ name }) => name === 'RUN').map(({ text }) => text);
  for (const run of runs) t.notRegex(run, /apt-get|apt |npm (ci|install)|make\b|gcc|curl|wget/);
  t.true(runs.some((run) => run.startsWith('rm -rf') && run.includes('/usr/local/bin/npm')));
});

test('the program in the image asks for nothing that is not in the image', (t) => {
  const installed = Object.keys(manifest.dependencies);
  const inImage = program(stages[0] as Stage);
  const files = globSync(['src/**/*.ts', 'webhook/**/*.ts'], { cwd: root });
  t.true(files.length > 30);
  for (const file of files) {
    // Types are stripped, and with them the imports of types.
    const imports = read(file).matchAll(/^(?:import|export)(?! type)[^'"]*?from '([^']+)';/gm);
    for (const [, name = ''] of imports) {
      if (name.startsWith('.')) {
        const target = relative(root, join(root, dirname(file), name));
        t.true(
          inImage.some((path) => target === path || target.startsWith(`${path}/`)),
          `${file} imports ${name}`,
        );
      } else if (!isBuiltin(name)) {
        t.true(
          installed.some((known) => name === known || name.startsWith(`${known}/`)),
          `${file} imports ${name}`,
        );
      }
    }
  }
});

test('the Dockerfile reader knows continued lines, arguments and lists, and no others', (t) => {
  const text = ['# x', 'ARG V=1', `FROM a:$${'{V}'} AS b`, 'RUN one && \\', '  two', 'CMD ["x y", "z"]'].join('\n');
  const [stage] = readDockerfile(text);
  t.is(stage?.from, 'a:1');
  t.deepEqual(
    stage?.instructions.map(({ args }) => args),
    [
      ['one', '&&', 'two'],
      ['x y', 'z'],
    ],
  );
  t.throws(() => readDockerfile('FROM a\nADD x y'), { message: /not known: ADD x y/ });
  t.throws(() => readDockerfile('RUN x'), { message: /before any FROM/ });
});
