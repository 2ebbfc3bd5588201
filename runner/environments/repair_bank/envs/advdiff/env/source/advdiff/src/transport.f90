! Advection, diffusion and decay of a tracer in a steady flow.
module transport_model
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  use grid, only: grid_t
  use velocity, only: flow_t
  use boundary, only: fill_ghosts
  use advection, only: add_advection
  use diffusion, only: add_diffusion
  use reaction, only: kinetics_t, add_reaction
  implicit none

  type(deck_t) :: d
  type(grid_t) :: g
  type(flow_t) :: f
  type(kinetics_t) :: k

contains

  subroutine rhs(q, tendency)
    real(dp), intent(inout) :: q(1-ghosts:, 1-ghosts:, :)
    real(dp), intent(out) :: tendency(:, :, :)
    integer :: s
    tendency = 0.0_dp
    do s = 1, size(q, 3)
      call fill_ghosts(d, q(:, :, s))
      call add_advection(d, g, f, q(:, :, s), tendency(:, :, s))
      call add_diffusion(g, d%diffusivity(1), q(:, :, s), tendency(:, :, s))
    end do
    call add_reaction(k, g, q, tendency)
  end subroutine rhs

end module transport_model

program transport
  use deck, only: read_deck
  use grid, only: make_grid
  use velocity, only: make_flow
  use reaction, only: make_kinetics
  use stepper, only: stable_step
  use simulation, only: run, arguments
  use transport_model, only: d, g, f, k, rhs
  implicit none
  character(len=:), allocatable :: deck_path, folder

  call arguments(deck_path, folder)
  d = read_deck(deck_path)
  g = make_grid(d)
  f = make_flow(d, g)
  k = make_kinetics(d)
  call run(d, g, rhs, stable_step(d, g, max(maxval(abs(f%u)), maxval(abs(f%v))), d%diffusivity(1)), folder)
end program transport
