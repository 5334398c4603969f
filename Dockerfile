# The one image of Cotenant: both halves of the agent and the webhook are commands of one program.
# Owns how it is built; what runs where is the chart's part. CI has no Docker daemon, so there the build itself is not
# exercised: test/integration/chart/dockerfile.test.ts reads this file and holds it against the repository.

# The Node that the tests run (devDependencies of package.json).
ARG NODE_VERSION=26.10.0

# Compilers come with this one. Bookworm, also because what is built here is loaded into tenants' containers: an older C
# library there would refuse what was built against a newer one.
FROM node:${NODE_VERSION}-bookworm AS build
WORKDIR /opt/cotenant
COPY package.json package-lock.json ./
# An optional peer of valibot, TypeScript, would come along without the second --omit; nothing else here is optional.
RUN npm ci --omit=dev --omit=optional --no-audit --no-fund
COPY native native
# Objects stay behind, and what only debuggers read of the files that pods get copies of stands beside these, in debug/.
RUN make -C native all shipped && cp -r native/build/shipped/. native/build && rm -rf native/build/o native/build/shipped
# Node would strip types as well, at each start and for 30 MiB.
COPY image image
COPY src program/src
COPY webhook program/webhook
COPY native/build.ts program/native/build.ts
RUN node image/strip-types.ts program

FROM node:${NODE_VERSION}-bookworm-slim
# Nothing in here installs or builds anything.
RUN rm -rf /usr/local/lib/node_modules /usr/local/include /usr/local/bin/npm /usr/local/bin/npx
WORKDIR /opt/cotenant
COPY package.json LICENSE ./
COPY --from=build /opt/cotenant/node_modules node_modules
COPY --from=build /opt/cotenant/native/build native/build
COPY --from=build /opt/cotenant/program ./
# Of the source, for cotenant_exporter_build_info.
ARG REVISION=
ENV NODE_ENV=production COTENANT_REVISION=${REVISION}
# Nobody. The agent's node half is root by the chart's word, not by the image's.
USER 65532:65532
ENTRYPOINT ["node", "/opt/cotenant/src/cli/main.js"]
CMD ["--help"]
